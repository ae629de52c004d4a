use clap::CommandFactory as _;

#[test]
fn every_command_has_examples_that_it_accepts() {
    let command = super::Cli::command();
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = subcommand.get_name();
        // The container runtime starts this one.
        if name == "cni" {
            continue;
        }
        let help = subcommand.get_after_help();
        let help = help
            .unwrap_or_else(|| panic!("no examples of {name}"))
            .to_string();
        let examples: Vec<&str> = help
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("sidetrack "))
            .collect();
        assert!(!examples.is_empty(), "{help}");
        for example in examples {
            // Two blanks begin a remark.
            let typed = example.split("  ").next().unwrap_or_default();
            let typed = typed.split(" > ").next().unwrap_or_default();
            // Shells take brackets for a pattern, so that they are quoted.
            let words = typed.split_whitespace().map(|word| {
                assert!(!word.starts_with('['), "{example}: quote {word}");
                word.trim_matches('\'')
            });
            let matches = command.clone().try_get_matches_from(words);
            matches.unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}
