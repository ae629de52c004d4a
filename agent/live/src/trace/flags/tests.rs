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
        "--verdict=given-up",
        "--rule=out-all",
        "--port=443",
        "--address=10.0.0.0/8",
        "--process=--odd name",
    ];
    let given = [&["trace", "--count", "3"][..], &words].concat();
    let cli = Cli::try_parse_from(given).expect("flags");
    assert_eq!(cli.flags.filter_words(), words);
    for wrong in ["--rule=none", "--address=10", "--verdict=x", "--duration=x"] {
        assert!(Cli::try_parse_from(["trace", wrong]).is_err(), "{wrong}");
    }
}
