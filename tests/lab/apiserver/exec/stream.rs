//! A program with the client's standard input, and its output as it comes.

use std::{
    io::{Read, Write as _},
    process::{ChildStdin, Command, Stdio},
    thread,
};

use axum::extract::ws::{Message, WebSocket};
use tokio::sync::mpsc;

use super::{End, STATUS, STDERR, STDOUT, send, send_all, status};

/// The client's standard input.
const STDIN: u8 = 0;
/// The client ends a channel, whose number follows.
const CLOSE: u8 = 255;

/// Output, or the end.
enum Piece {
    Bytes(u8, Vec<u8>),
    End(End),
}

/// Runs it to its end, or until the client is gone.
pub(super) async fn stream(socket: &mut WebSocket, mut command: Command) {
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let status = status(&End::NotStarted(error.to_string())).to_string();
            let _ = send(socket, STATUS, status.as_bytes()).await;
            return;
        }
    };
    let (out, mut pieces) = mpsc::unbounded_channel();
    let mut stdin = child.stdin.take();
    let readers = [
        child.stdout.take().map(|from| reader(STDOUT, from, &out)),
        child.stderr.take().map(|from| reader(STDERR, from, &out)),
    ];
    // It is waited for whether or not the client is still there.
    thread::spawn(move || {
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        let code = child.wait().ok().and_then(|status| status.code());
        let _ = out.send(Piece::End(End::Code(code.unwrap_or(137))));
    });
    loop {
        tokio::select! {
            piece = pieces.recv() => match piece {
                Some(Piece::Bytes(channel, bytes)) => {
                    if send_all(socket, channel, &bytes).await.is_err() {
                        return;
                    }
                }
                Some(Piece::End(end)) => {
                    let status = status(&end).to_string();
                    let _ = send(socket, STATUS, status.as_bytes()).await;
                    let _ = socket.send(Message::Close(None)).await;
                    return;
                }
                None => return,
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(bytes))) => input(&mut stdin, &bytes),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

fn reader(
    channel: u8,
    mut from: impl Read + Send + 'static,
    out: &mpsc::UnboundedSender<Piece>,
) -> thread::JoinHandle<()> {
    let out = out.clone();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            // Read to the end, so that the program is not held up by a client that is gone.
            let _ = out.send(Piece::Bytes(channel, bytes[..length].to_vec()));
        }
    })
}

fn input(stdin: &mut Option<ChildStdin>, bytes: &[u8]) {
    match bytes {
        [STDIN, rest @ ..] => {
            if let Some(stdin) = stdin {
                // It may have ended.
                let _ = stdin.write_all(rest).and_then(|()| stdin.flush());
            }
        }
        [CLOSE, STDIN] => *stdin = None,
        _ => {}
    }
}
