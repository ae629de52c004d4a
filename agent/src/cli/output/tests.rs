use serde_json::{Value, json};

use sidetrack_live::output::yaml;

use super::{lines, table};

#[test]
fn the_last_column_fits_the_terminal() {
    let mut table = table(["POD", "REMARKS"]);
    let remark = "a remark that is much longer than what the terminal has room for";
    table.add_row(["shop/web-0", remark]);
    let in_file = lines(&table, None);
    assert_eq!(in_file.len(), 2, "{in_file:?}");
    assert!(in_file[1].ends_with(remark));
    let wrapped = lines(&table, Some(40));
    assert!(wrapped.len() > 3, "{wrapped:?}");
    assert!(wrapped.iter().all(|line| line.len() <= 40), "{wrapped:?}");
    assert!(wrapped[1].contains("shop/web-0"), "{wrapped:?}");
    // With room for all of it, and with none.
    assert_eq!(lines(&table, Some(200)), in_file);
    assert_eq!(lines(&table, Some(16)), in_file);
}

#[test]
fn yaml_has_what_json_has() {
    let value = json!({
        "text": "yes", "number": "1", "colon": "a: b", "empty": "", "lines": "a\nb\n", "nothing": null,
        "list": [1, true, {"deep": [[], {}]}], "#": "- ~ \"\u{e9}\u{1}",
    });
    let text = yaml(&value).unwrap();
    let read: Vec<Value> =
        sidetrack_policy::manifest::parse_yaml(&text, sidetrack_policy::manifest::MAX_NODES)
            .unwrap();
    assert_eq!(read, [value], "{text}");
}
