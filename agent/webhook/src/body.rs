//! A request's body, as far as there is room for it.

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use http_body_util::BodyExt as _;

use sidetrack_base::http::places::Place;

/// What the API server takes of a client.
const MAX_BODY_BYTES: usize = 3 << 20;
/// So much of a longer body is read and discarded: its sender reads the answer only afterwards.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// Nearly every pod's body is smaller.
pub const SMALL_BYTES: usize = 128 << 10;

/// The answer to a client that is at its quota.
pub const NO_ROOM: &str = "too many bodies are being sent; try again";

/// The whole body. It belongs to what the connection holds from the beginning, so that one that has begun
/// to arrive is not refused halfway.
///
/// # Errors
/// The answer, if it is too long, has no room, or cannot be read.
pub async fn collect(
    mut body: Body,
    length: Option<usize>,
    place: &Place,
) -> Result<Vec<u8>, (StatusCode, String)> {
    place.waits();
    let announced = length.unwrap_or(SMALL_BYTES).min(MAX_BODY_BYTES);
    let mut room = announced;
    let has_room = |bytes: usize| {
        let no_room = || (StatusCode::SERVICE_UNAVAILABLE, NO_ROOM.to_owned());
        place.holds(bytes).then_some(bytes).ok_or_else(no_room)
    };
    has_room(room)?;
    let mut bytes = Vec::with_capacity(room);
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let text = format!("the body cannot be read: {error}");
            (StatusCode::BAD_REQUEST, text)
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        size += data.len();
        if size > MAX_DISCARDED_BYTES {
            break;
        }
        if size > MAX_BODY_BYTES {
            bytes = Vec::new();
            continue;
        }
        if size > room {
            room = has_room((2 * room).max(size).min(MAX_BODY_BYTES))?;
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(data);
    }
    if size > MAX_BODY_BYTES {
        let text = format!("the body has more than {} MiB", MAX_BODY_BYTES >> 20);
        return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    Ok(bytes)
}

/// The length that a head announces.
pub fn length(headers: &HeaderMap) -> Option<usize> {
    let text = headers.get(header::CONTENT_LENGTH)?;
    text.to_str().ok()?.parse().ok()
}
