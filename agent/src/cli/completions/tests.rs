use clap::CommandFactory as _;

use super::{Cli, PodPlaces, Shell, script};

#[test]
fn pods_are_completed_where_they_are_named() {
    let places = PodPlaces::of(&Cli::command());
    for command in ["rules", "explain"] {
        assert!(places.commands.iter().any(|it| it == command), "{command}");
    }
    assert!(
        places
            .options
            .contains(&("status".to_owned(), "--wait".to_owned()))
    );
    let zsh = script(Shell::Zsh, Cli::command());
    let actions = zsh.matches(":_sidetrack_pods'").count();
    assert!(
        actions >= places.commands.len() + places.options.len(),
        "{actions}"
    );
    let fish = script(Shell::Fish, Cli::command());
    assert!(
        fish.contains("from rules\" -f -a \"(sidetrack __pods"),
        "{fish}"
    );
    assert!(fish.contains("-l wait -x -a"), "{fish}");
}
