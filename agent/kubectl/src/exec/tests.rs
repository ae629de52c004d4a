use tokio::io::BufReader;

use super::{MAX_LINE, copy, next_line};

#[tokio::test]
async fn lines_have_a_bound() {
    let text = format!("one\n\ntwo\r\n{}", "x".repeat(2 * MAX_LINE as usize));
    let mut input = BufReader::new(text.as_bytes());
    for line in ["one", "", "two"] {
        assert_eq!(
            next_line(&mut input).await.expect("a line").as_deref(),
            Some(line)
        );
    }
    let error = next_line(&mut input).await.unwrap_err().to_string();
    assert!(error.contains("a line of more than 256 KiB"), "{error}");
    let mut last = BufReader::new(&b"last"[..]);
    assert_eq!(
        next_line(&mut last).await.expect("a line").as_deref(),
        Some("last")
    );
    assert_eq!(next_line(&mut last).await.expect("the end"), None);
}

async fn copied(text: &[u8]) -> String {
    let mut out = Vec::new();
    copy(Some(text), &mut out).await.expect("it is copied");
    String::from_utf8(out).expect("text")
}

#[tokio::test]
async fn a_nodes_word_is_text() {
    let hostile = "a\u{1b}[31mb\u{202e}c\n\td".as_bytes();
    let shown = "a\\u001b[31mb\\u202ec\n\td".to_owned();
    assert_eq!(copied(hostile).await, shown);
    // A character in two parts, one that never ends, and one that is none.
    let long = "x".repeat(super::BUFFER - 1) + "\u{fc}y";
    assert_eq!(copied(long.as_bytes()).await, long);
    assert_eq!(copied(b"a\xffb\xc3").await, "a\u{fffd}b\u{fffd}");
}
