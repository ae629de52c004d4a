use std::{path::Path, sync::Arc};

use sidetrack_policy::{
    manifest::{Document, parse_pods},
    select::Skipped,
};

use super::{Read, Selected};

fn document() -> Document {
    let text = r#"{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}}"#;
    let (mut documents, _) = parse_pods(Path::new("a.json"), text).expect("a manifest");
    documents.remove(0)
}

#[test]
fn a_document_is_read_again_when_it_or_its_namespace_has_changed() {
    let document = document();
    let read = Read {
        pod: Arc::clone(&document.pod),
        namespace_label: document.namespace_label.clone(),
        namespace_mode: document.namespace_mode.clone(),
        runtime_handler: document.runtime_handler.clone(),
        selected: Selected::Skipped(Skipped::NotOptedIn),
        is_stale: false,
    };
    assert!(read.is_of(&document));
    let changed = |change: fn(&mut Document)| {
        let mut other = document.clone();
        change(&mut other);
        other
    };
    for other in [
        changed(|it| it.pod = Arc::new((*it.pod).clone())),
        changed(|it| it.namespace_label = Some("enabled".to_owned())),
        changed(|it| it.namespace_mode = Some("ambient".to_owned())),
        changed(|it| it.runtime_handler = Some("kata".to_owned())),
    ] {
        assert!(!read.is_of(&other), "{other:?}");
    }
}
