use serde_json::Value;

use super::{MAX_OBJECTS, MAX_VALUES, Whole, understood};
use crate::exec::Finished;

fn finished(stdout: String) -> Finished {
    Finished {
        stdout: stdout.into_bytes(),
        stderr: Vec::new(),
        code: 0,
    }
}

#[test]
fn an_answer_has_a_bounded_number_of_values() {
    let list = |item: &str, count: usize| {
        finished(format!("[{}{item}]", format!("{item},").repeat(count - 1)))
    };
    assert!(understood::<Value>(&list("{}", MAX_OBJECTS)).is_ok());
    for hostile in [list("{}", MAX_OBJECTS + 1), list("0", MAX_VALUES + 2)] {
        let error = understood::<Value>(&hostile).unwrap_err().to_string();
        assert!(error.contains("more values"), "{error}");
    }
}

#[test]
fn what_is_shown_in_part_is_an_object() {
    #[derive(Debug, serde::Deserialize)]
    struct Part {
        #[expect(dead_code, reason = "it is read")]
        name: String,
    }
    let answer = |text: &str| understood::<Whole<Part>>(&finished(text.to_owned()));
    assert!(answer(r#"{"name": "a", "more": 1}"#).is_ok());
    assert!(answer(r#"["a"]"#).is_err());
}

#[test]
fn what_is_not_understood_is_shown_escaped() {
    #[derive(Debug, serde::Deserialize)]
    enum Known {}
    let answer = finished("\"\\u001b]0;x\\u0007\\u202e\"".to_owned());
    let error = understood::<Known>(&answer).unwrap_err().to_string();
    assert!(error.contains("unknown variant"), "{error}");
    assert!(!error.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{error}");
}
