use super::*;

fn texts(page: &str) -> Vec<(Program, String)> {
    of(page)
        .into_iter()
        .map(|it| (it.program, it.words.join(" ")))
        .collect()
}

fn one(program: Program, words: &str) -> Vec<(Program, String)> {
    vec![(program, words.to_owned())]
}

#[test]
fn commands_are_found_where_they_are_called() {
    use Program::{Plugin, Sidetrack, Xtask};
    let cases = [
        ("    sidetrack pods   # all", one(Sidetrack, "pods")),
        ("```\nsidetrack pods\n```", one(Sidetrack, "pods")),
        ("run `sidetrack why POD` then", one(Sidetrack, "why web-0")),
        ("    kubectl sidetrack top -A", one(Plugin, "top -A")),
        (
            "    cargo xtask soak [--minutes 10]",
            one(Xtask, "soak --minutes 10"),
        ),
        (
            "    kubectl -n a exec $agent -- sidetrack rules a/b",
            one(Sidetrack, "rules a/b"),
        ),
        (
            "    cat pod.yaml | sidetrack rules --manifest - > out",
            one(Sidetrack, "rules --manifest -"),
        ),
        (
            "    sidetrack explain a/b \\\n      outbound --dst '[fd00::9]:80'",
            one(Sidetrack, "explain a/b outbound --dst [fd00::9]:80"),
        ),
        (
            "    $ sidetrack pods\n    sidetrack is ready",
            one(Sidetrack, "pods"),
        ),
        ("| `sidetrack trace [POD]` |", one(Sidetrack, "trace web-0")),
        (
            "| `sidetrack probe live\\|ready` |",
            one(Sidetrack, "probe live"),
        ),
        ("    sidetrack-actor pods\n\nsidetrack pods", vec![]),
    ];
    for (page, expected) in cases {
        assert_eq!(texts(page), expected, "{page}");
    }
}

#[test]
fn a_command_has_its_line() {
    let found = of("# Page\n\n    sidetrack pods\n");
    assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [3]);
}

#[test]
fn flags_and_commands_are_read_from_help() {
    let help = "Usage: x\n\nCommands:\n  pods  All\n          more\n  help  Print\n\nOptions:\n  -o, --output <F>  How\n      --no-color    Plain --other\n";
    assert_eq!(commands_of_help(help).collect::<Vec<_>>(), ["pods"]);
    let flags: Vec<_> = flags_of_help(help)
        .map(|flag| (flag.long, flag.short))
        .collect();
    let output = ("--output".to_owned(), Some("-o".to_owned()));
    assert_eq!(flags, [output, ("--no-color".to_owned(), None)]);
}

#[test]
fn a_flag_is_no_part_of_another() {
    let flag = |long: &str, short: Option<&str>| Flag {
        long: long.to_owned(),
        short: short.map(str::to_owned),
    };
    assert!(flag("--node-name", None).is_in("with --node-name, say"));
    assert!(!flag("--node", None).is_in("with --node-name"));
    assert!(flag("--node", Some("-n")).is_in("with `-n NAME`"));
    assert!(!flag("--node", Some("-n")).is_in("with --node-name and x-n"));
}
