#[test]
fn every_command_has_examples_that_it_accepts() {
    let command = super::super::command();
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
            let matches = command
                .clone()
                .try_get_matches_from(typed.split_whitespace());
            matches.unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}
