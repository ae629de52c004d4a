use clap::Parser as _;

use super::Pass;
use crate::{Cli, flags::Connect, workload::Named};

fn read(line: &str) -> Result<(Pass, Connect), String> {
    let mut connect = Cli::parse_from(["kubectl-sidetrack", "status"]).connect;
    let mut words = line.split_whitespace().map(str::to_owned);
    let command = words.next().expect("a command");
    let pass = Pass::read(&command, words.collect(), &mut connect)?;
    Ok((pass, connect))
}

#[test]
fn flags_about_the_cluster_are_the_plugins() {
    for line in [
        "rules web-0 -6 -n shop -o json --context prod",
        "rules -n shop web-0 -6 --context=prod -o json",
        "rules -nshop --context prod web-0 -6 -o json",
        "rules --namespace=shop web-0 --context prod -6 -o json",
    ] {
        let (pass, connect) = read(line).expect(line);
        assert_eq!(pass.pod, Named::Word("web-0".to_owned()), "{line}");
        assert_eq!(pass.words, ["-6", "-o", "json"], "{line}");
        assert_eq!(connect.namespace.as_deref(), Some("shop"), "{line}");
        assert_eq!(connect.context.as_deref(), Some("prod"), "{line}");
    }
}

#[test]
fn what_follows_two_hyphens_is_the_agents() {
    let (pass, connect) = read("trace web-0 -- -n shop").expect("a command");
    assert_eq!(pass.words, ["-n", "shop"]);
    assert_eq!(connect.namespace, None);
}

#[test]
fn mistakes() {
    for (line, expected) in [
        ("rules", "name a pod: kubectl sidetrack rules"),
        ("rules -6 web-0", "the pod comes before -6"),
        ("rules web-0 -n", "flag -n needs a value"),
        ("rules -l", "flag -l needs a value"),
        ("rules web-0 --as=", "flag --as needs a value"),
        ("rules web-0 --as-group=dev", "flag --as-group needs --as"),
    ] {
        let error = read(line).expect_err(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn labels_may_be_attached() {
    for line in [
        "why -l app=web",
        "why -lapp=web",
        "why --selector=app=web",
        "why -l=app=web -o json",
    ] {
        let (pass, _) = read(line).expect(line);
        assert_eq!(pass.pod, Named::Labels("app=web".to_owned()), "{line}");
    }
}
