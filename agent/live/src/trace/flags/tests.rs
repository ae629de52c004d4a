use clap::Parser;

use super::Flags;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

#[test]
fn filters_are_passed_on_as_they_were_given() {
    let words = [
        "--refused",
        "--direction=inbound",
        "--verdict=failed",
        "--rule=out-all",
        "--port=443",
        "--address=10.0.0.0/8",
        "--process=--odd name",
    ];
    let given = [&["trace", "--count", "3"][..], &words].concat();
    let cli = Cli::try_parse_from(given).expect("flags");
    assert_eq!(cli.flags.filter_words(), words);
    for wrong in [
        "--rule=none",
        "--address=10",
        "--verdict=x",
        "--duration=x",
        "--duration=0s",
        "--port=0",
        "--count=0",
        "--process=",
        "--process=a-name-of-26-characters-xx",
    ] {
        assert!(Cli::try_parse_from(["trace", wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn flags_that_no_connection_fits() {
    for (words, said) in [
        (&["--refused", "--verdict=untouched"][..], Some("--refused")),
        (&["--refused", "--verdict=given-up"], Some("--refused")),
        (&["--refused", "--verdict=refuse"], None),
        (&["--refused", "--verdict=failed"], None),
        (&["--refused", "--rule=out-all"], Some("refuses no")),
        (&["--refused", "--rule=no-listener"], None),
        (&["--rule=out-all", "--verdict=failed"], Some("is redirect")),
        (&["--rule=out-all", "--verdict=redirect"], None),
        (&["--rule=out-all", "--direction=inbound"], Some("outbound")),
        (&["--rule=in-all", "--direction=inbound"], None),
        (&["--direction=inbound", "--verdict=untouched"], None),
    ] {
        let given = [&["trace"][..], words].concat();
        let cli = Cli::try_parse_from(given).expect("flags");
        let found = cli.flags.contradiction();
        match said {
            None => assert_eq!(found, None, "{words:?}"),
            Some(said) => assert!(
                found.as_ref().is_some_and(|found| found.contains(said)),
                "{words:?}: {found:?}"
            ),
        }
    }
}
