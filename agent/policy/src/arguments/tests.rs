//! Command lines of istio-init.

use super::{FLAGS, HARMLESS, OTHER_WITH_VALUE, SWITCHES, Unread, parse, unknown, unread};
use crate::inputs::{Input, Inputs};

fn read(words: &[&str]) -> Inputs {
    parse(words.iter().copied(), "istio-init").expect("a command line")
}

fn value(inputs: &Inputs, input: Input) -> Option<&str> {
    inputs.get(input).map(|found| found.value.as_str())
}

/// Every flag in all forms, and the same word as a value of the flag before it.
#[test]
fn flags_in_every_form() {
    for (short, long, input) in FLAGS {
        for flag in [short, long] {
            let attached = format!("{flag}=7");
            for words in [
                &[flag, "7"][..],
                &[&attached],
                &["istio-iptables", flag, "7", "x"],
            ] {
                let inputs = read(words);
                assert_eq!(value(&inputs, input), Some("7"), "{words:?}");
                let origin = &inputs.get(input).expect("it").origin;
                assert_eq!(*origin, format!("argument {flag} of istio-init"));
            }
        }
        let glued = format!("{short}7");
        assert_eq!(value(&read(&[&glued]), input), Some("7"), "{glued}");
        let empty = read(&[short, ""]);
        assert_eq!(value(&empty, input), Some(""), "{short}");
    }
}

/// The value of a flag that is no input must not be read as a flag.
#[test]
fn other_flags_take_their_value_along() {
    for flag in OTHER_WITH_VALUE {
        let inputs = read(&[flag, "-u", "-p", "7"]);
        assert_eq!(value(&inputs, Input::ProxyUid), None, "{flag}");
        assert_eq!(value(&inputs, Input::EnvoyPort), Some("7"), "{flag}");
        let attached = format!("{flag}=1");
        let inputs = read(&[&attached, "-p", "7"]);
        assert_eq!(value(&inputs, Input::EnvoyPort), Some("7"), "{flag}");
    }
}

#[test]
fn switches() {
    for (flag, input) in SWITCHES {
        let inputs = read(&[flag, "-p", "7"]);
        assert_eq!(value(&inputs, input), Some("true"), "{flag}");
        assert_eq!(value(&inputs, Input::EnvoyPort), Some("7"), "{flag}");
        let off = format!("{flag}=false");
        assert_eq!(value(&read(&[&off]), input), Some("false"), "{flag}");
    }
    // A switch that is not known takes no value along.
    let inputs = read(&["--dry-run", "-p", "7", "--new=1", "-u", "8"]);
    assert_eq!(value(&inputs, Input::EnvoyPort), Some("7"));
    assert_eq!(value(&inputs, Input::ProxyUid), Some("8"));
}

#[test]
fn the_last_value_counts() {
    let inputs = read(&["-p", "7", "--envoy-port", "8"]);
    assert_eq!(value(&inputs, Input::EnvoyPort), Some("8"));
}

#[test]
fn a_value_that_is_missing() {
    for words in [&["-p"][..], &["-u", "7", "--envoy-port"], &["-t"]] {
        let error = parse(words.iter().copied(), "istio-init").unwrap_err();
        assert_eq!(error.origin, "the command line of istio-init");
        assert_eq!(error.problem, "the flag's value is missing");
        assert_eq!(error.value, *words.last().expect("a word"));
    }
}

/// No known flag is called unknown, in any form, and values are no flags.
#[test]
fn unknown_flags() {
    let with_value = FLAGS.iter().flat_map(|(short, long, _)| [*short, *long]);
    for flag in with_value.chain(OTHER_WITH_VALUE) {
        let attached = format!("{flag}=-v");
        assert_eq!(unknown([flag, "-v"]), [""; 0], "{flag}");
        assert_eq!(unknown([attached.as_str()]), [""; 0], "{flag}");
        assert_eq!(unknown([flag, "-v", "--later=1"]), ["--later"], "{flag}");
    }
    let switches = SWITCHES.iter().map(|(name, _)| *name);
    for flag in switches.chain(HARMLESS) {
        assert_eq!(unknown([flag, "-w"]), ["-w"], "{flag}");
    }
}

#[test]
fn what_may_mean_something_and_is_not_read() {
    for (words, expected) in [
        (&["-p", "15001", "-u", "1337"][..], None),
        (&["istio-iptables", "-p", "15001", "--drop-invalid"], None),
        (
            &["/usr/local/bin/pilot-agent", "istio-iptables", "-p", "1"],
            None,
        ),
        (
            &["istio-iptables", "-p", "1", "--native-nftables", "-f=true"],
            None,
        ),
        (
            &["sh", "-c", "istio-iptables -p 15001"],
            Some(Unread::Program("sh")),
        ),
        (
            &["istio-iptables", "-p", "$(PORT)"],
            Some(Unread::Word("$(PORT)")),
        ),
        (
            &["istio-iptables", "--new", "-p", "1"],
            Some(Unread::Word("--new")),
        ),
        (
            &["istio-iptables", "-p", "1", "--skip-rule-apply"],
            Some(Unread::Word("--skip-rule-apply")),
        ),
        (
            &["sh", "-c", "istio-iptables -p $(PORT)"],
            Some(Unread::Program("sh")),
        ),
        (&["pilot-agent", "proxy"], Some(Unread::Word("proxy"))),
        (&["$(CMD)", "-p", "1"], Some(Unread::Word("$(CMD)"))),
        (&["istio-iptables", "-n"], Some(Unread::Word("-n"))),
    ] {
        assert_eq!(unread(words.iter().copied()), expected, "{words:?}");
    }
}
