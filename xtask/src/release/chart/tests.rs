use serde_json::Value;

use super::{kustomization, readme, require_image, values};

const IMAGE: &str = "ghcr.io/example/sidetrack";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn the_charts_values_name_the_image_by_digest() {
    let text = include_str!("../../../../deploy/chart/values.yaml");
    let changed = values(text, IMAGE, DIGEST).expect("edited");
    let mut before: Value = serde_saphyr::from_str(text).expect("YAML");
    let after: Value = serde_saphyr::from_str(&changed).expect("YAML");
    before["image"]["repository"] = IMAGE.into();
    before["image"]["digest"] = DIGEST.into();
    assert_eq!(after, before, "nothing else changes");
    assert_eq!(changed.lines().count(), text.lines().count());
}

#[test]
fn values_in_another_form_are_refused() {
    for text in [
        "image:\n  repository: other\n  digest: \"\"\n",
        "image:\n  repository: sidetrack\n",
        "webhook:\n  repository: sidetrack\n  digest: \"\"\n",
    ] {
        assert!(values(text, IMAGE, DIGEST).is_err(), "{text}");
    }
}

#[test]
fn the_charts_readme_has_the_same_values() {
    let text = include_str!("../../../../deploy/chart/README.md");
    let changed = readme(text, IMAGE, DIGEST).expect("edited");
    assert!(changed.contains(&format!("| `image.repository` | `{IMAGE}` |")));
    assert!(changed.contains(&format!("| `image.digest` | `{DIGEST}` |")));
    assert!(readme("", IMAGE, DIGEST).is_err());
}

#[test]
fn kustomize_replaces_the_image_by_name_and_digest() {
    let text = kustomization(IMAGE, DIGEST).expect("YAML");
    let read: Value = serde_saphyr::from_str(&text).expect("YAML");
    let expected = serde_json::json!([{"name": "sidetrack", "newName": IMAGE, "digest": DIGEST}]);
    assert_eq!(read["images"], expected);
}

#[test]
fn every_container_has_the_image() {
    let pinned = format!("{IMAGE}@{DIGEST}");
    let pod = |own: &str, first: &str| {
        format!(
            "kind: Namespace\n---\nkind: Pod\nspec:\n  initContainers:\n  - image: {first}\n  \
             containers:\n  - image: {own}\n"
        )
    };
    require_image(&pod(&pinned, &pinned), &pinned).expect("accepted");
    let error = require_image(&pod(&pinned, "sidetrack:0.1.0"), &pinned).expect_err("refused");
    assert!(error.to_string().contains("sidetrack:0.1.0"), "{error}");
    assert!(require_image("kind: Namespace\n", &pinned).is_err());
}
