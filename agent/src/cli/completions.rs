//! `sidetrack completions`: scripts for shells, which also complete the names of pods.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Result;
use clap::{Arg, Args, Command, CommandFactory as _};
use sidetrack_live::documents::Shell;

use super::{Cli, Places, output, pods};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack completions bash > /usr/share/bash-completion/completions/sidetrack
  sidetrack completions zsh > /usr/share/zsh/site-functions/_sidetrack
  sidetrack completions fish > /usr/share/fish/vendor_completions.d/sidetrack.fish")]
pub(super) struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The hidden command that the scripts ask for the names of pods.
pub(super) const PODS: &str = "__pods";

/// Prints a script.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    output::print(script(options.shell, Cli::command()).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the known pods. Nothing else: a shell waits for it, and shows what it prints.
pub(super) async fn print_pods(places: Places) -> Result<ExitCode> {
    for pod in pods::known(&places).await.unwrap_or_default() {
        output::print(pod.full_name())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, mut command: Command) -> String {
    let name = command.get_name().to_owned();
    let generated = shell.script(&mut command, &name);
    let places = PodPlaces::of(&command);
    match shell {
        Shell::Bash => generated + &places.bash(),
        Shell::Zsh => places.zsh(&generated),
        Shell::Fish => generated + &places.fish(),
    }
}

/// Where a command line names a pod.
struct PodPlaces {
    /// Commands whose first argument is one.
    commands: Vec<String>,
    /// Options whose value is one, with their command.
    options: Vec<(String, String)>,
}

impl PodPlaces {
    fn of(command: &Command) -> Self {
        let is_pod = |arg: &&Arg| {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().any(|name| name == "NAMESPACE/POD")
        };
        let mut places = Self {
            commands: Vec::new(),
            options: Vec::new(),
        };
        for subcommand in command.get_subcommands() {
            let name = subcommand.get_name().to_owned();
            for arg in subcommand.get_arguments().filter(is_pod) {
                match arg.get_long() {
                    Some(long) => places.options.push((name.clone(), format!("--{long}"))),
                    None => places.commands.push(name.clone()),
                }
            }
        }
        places
    }

    /// A function around the generated one.
    fn bash(&self) -> String {
        let mut options: Vec<&str> = self.options.iter().map(|(_, long)| long.as_str()).collect();
        options.dedup();
        format!(
            r#"
_sidetrack_pods() {{
    _sidetrack "$@"
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" pods=""
    case "${{prev}}" in
        {}) COMPREPLY=(); pods=1 ;;
        {}) [[ "${{COMP_CWORD}}" -eq 2 && "${{cur}}" != -* ]] && pods=1 ;;
    esac
    if [[ -n "${{pods}}" ]]; then
        COMPREPLY+=($(compgen -W "$("${{COMP_WORDS[0]}}" {PODS} 2>/dev/null)" -- "${{cur}}"))
    fi
    return 0
}}
complete -F _sidetrack_pods -o bashdefault -o default sidetrack
"#,
            options.join("|"),
            self.commands.join("|"),
        )
    }

    /// The generated text, with another action for the arguments that are pods.
    fn zsh(&self, generated: &str) -> String {
        let is_pod = |line: &str| {
            let line = line.trim_start_matches(['\'', ':']);
            line.starts_with("pod -- ")
                || self
                    .options
                    .iter()
                    .any(|(_, long)| line.starts_with(&format!("{long}=[")))
        };
        let mut text = String::new();
        for line in generated.lines() {
            let line = if is_pod(line) {
                line.replace(":_default' \\", ":_sidetrack_pods' \\")
            } else {
                line.to_owned()
            };
            if line.starts_with("_sidetrack() {") {
                let _ = writeln!(
                    text,
                    "_sidetrack_pods() {{\n    local -a pods\n    pods=(${{(f)\"$(sidetrack {PODS} 2>/dev/null)\"}})\n    compadd -a pods\n}}\n"
                );
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// More completions beside the generated ones.
    fn fish(&self) -> String {
        let pods = format!("(sidetrack {PODS} 2>/dev/null)");
        let mut text = String::new();
        for command in &self.commands {
            let _ = writeln!(
                text,
                "complete -c sidetrack -n \"__fish_seen_subcommand_from {command}\" -f -a \"{pods}\""
            );
        }
        for (command, long) in &self.options {
            let long = long.trim_start_matches('-');
            let _ = writeln!(
                text,
                "complete -c sidetrack -n \"__fish_seen_subcommand_from {command}\" -l {long} -x -a \"{pods}\""
            );
        }
        text
    }
}

#[cfg(test)]
mod tests;
