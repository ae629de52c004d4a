use std::time::Duration;

use super::interval;

#[test]
fn intervals_have_bounds() {
    assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
    assert_eq!(interval("1h"), Ok(Duration::from_secs(3600)));
    for text in ["0", "99ms", "61m", "soon"] {
        assert!(interval(text).is_err(), "{text}");
    }
}
