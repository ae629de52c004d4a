//! Manifests: from a file or a pipe, with one pod or several.

use crate::run::{piped, run, workload};

const RULES: [&str; 4] = ["rules", "--manifest", "-", "--output=json"];

#[test]
fn from_a_pipe() {
    let rules = piped(&RULES, &workload("CronJob", "a", ""))
        .error(1)
        .to_owned();
    assert!(
        rules.contains("stdin has no pod and no workload"),
        "{rules}"
    );
    let deployment = workload("Deployment", "web", "");
    assert!(
        piped(&RULES, &deployment)
            .json()
            .as_array()
            .is_some_and(|rules| rules.len() > 5)
    );
    let named = ["rules", "web", "--manifest", "-"];
    assert!(
        piped(&named, &deployment)
            .text()
            .contains("pod default/web, dialect current")
    );
    let from_file = run(&["rules", "--manifest", "/dev/stdin"]);
    assert!(from_file.error(1).contains("--manifest -"), "{from_file:?}");
}

#[test]
fn several_pods() {
    let all: Vec<String> = (0..20)
        .map(|number| workload("Pod", &format!("p{number}"), ""))
        .collect();
    let text = all.join("\n---\n");
    let error = piped(&RULES, &text).error(1).to_owned();
    assert!(
        error.contains("stdin has 20 pods: default/p0, default/p1")
            && error.contains("and 12 more; name one"),
        "{error}"
    );
    let one = ["rules", "p7", "--manifest", "-"];
    assert!(piped(&one, &text).text().contains("pod default/p7"));
    let wrong = ["rules", "-n", "shop", "p7", "--manifest", "-"];
    let error = piped(&wrong, &text).error(1).to_owned();
    assert!(
        error.contains("no pod shop/p7 is known; did you mean default/p7"),
        "{error}"
    );
    let twice = ["rules", "-n", "shop", "default/p7", "--manifest", "-"];
    assert!(
        piped(&twice, &text)
            .error(2)
            .contains("not in namespace shop")
    );
    let same = format!("{}\n---\n{}", all[0], all[0]);
    assert!(piped(&RULES, &same).error(1).contains("more than once"));
}
