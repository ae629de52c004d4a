use super::picture;

#[test]
fn the_picture_in_the_docs_is_this_one() {
    let drawn = include_str!("../../../../docs/pictures/path.svg");
    assert!(drawn == picture(), "run `cargo xtask pictures`");
}
