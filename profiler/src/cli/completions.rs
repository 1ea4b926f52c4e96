//! `aiprof completions`: scripts for the shells, from the command line's own types.

use super::Cli;
use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use std::io::Write;

/// Options of `aiprof completions`.
#[derive(Debug, Args)]
#[command(after_help = "For bash: aiprof completions bash > \
                        ~/.local/share/bash-completion/completions/aiprof")]
pub(crate) struct CompletionsArgs {
    /// Shell for which to print the script
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// The generated script without hidden options, and with what it lacks: what follows
/// COMMAND is completed as if it stood alone.
fn for_bash(generated: &str) -> String {
    let mut command = Cli::command();
    command.build();
    let hidden = hidden_options(&command);
    let is_shown = |word: &&str| !hidden.iter().any(|hidden| hidden == word);
    let mut script = String::new();
    for line in generated.lines() {
        match line.trim_start().strip_prefix("opts=\"") {
            Some(words) if !words.starts_with('"') => {
                let words: Vec<&str> = words.split(' ').filter(is_shown).collect();
                script.push_str(&format!("            opts=\"{}\n", words.join(" ")));
            }
            _ => {
                script.push_str(&line.replace("complete -F _aiprof ", "complete -F _aiprof_all "));
                script.push('\n');
            }
        }
    }
    let subcommands = command.get_subcommands().map(|sub| sub.get_name());
    let others: Vec<&str> = subcommands
        .filter(|name| !["record", "trace"].contains(name))
        .collect();
    BASH.replace("@SUBCOMMANDS@", &others.join("|"))
        .replace("@WITH_VALUE@", &options_with_value(&command).join("|"))
        + &script
}

/// Finds COMMAND on the line; before it, and for subcommands without one, the generated
/// function answers.
const BASH: &str = r#"_aiprof_all() {
    local at=1 sub= word
    while ((at < COMP_CWORD)); do
        word="${COMP_WORDS[at]}"
        case "$word" in
            --) ((at += 1)); break ;;
            @WITH_VALUE@)
                ((at += 2))
                # `--option=value` is three words to bash.
                [[ "${COMP_WORDS[at - 1]}" == "=" ]] && ((at += 1)) ;;
            -*) ((at += 1)) ;;
            record|trace) [[ -n "$sub" ]] && break; sub="$word"; ((at += 1)) ;;
            @SUBCOMMANDS@) _aiprof "$@"; return ;;
            *) break ;;
        esac
    done
    if ((at >= COMP_CWORD)) && [[ "${COMP_WORDS[COMP_CWORD]}" == -* || $COMP_CWORD -eq 1 || at -gt COMP_CWORD ]]; then
        _aiprof "$@"
    elif declare -F _command_offset > /dev/null; then
        _command_offset "$at"
    elif ((at == COMP_CWORD)); then
        COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}

"#;

/// `--option` of all options that help does not show.
fn hidden_options(command: &clap::Command) -> Vec<String> {
    let hidden = |command: &clap::Command| {
        let options = command.get_arguments().filter(|arg| arg.is_hide_set());
        let longs = options.filter_map(|arg| Some(format!("--{}", arg.get_long()?)));
        longs.collect::<Vec<_>>()
    };
    let subcommands = command.get_subcommands().flat_map(hidden);
    hidden(command).into_iter().chain(subcommands).collect()
}

/// Options before COMMAND that are followed by a value.
fn options_with_value(command: &clap::Command) -> Vec<String> {
    let all = [Some(command), command.find_subcommand("trace")];
    let mut names = Vec::new();
    for arg in all
        .into_iter()
        .flatten()
        .flat_map(clap::Command::get_arguments)
    {
        if arg.is_positional() || !arg.get_action().takes_values() {
            continue;
        }
        names.extend(arg.get_long().map(|long| format!("--{long}")));
        names.extend(arg.get_short().map(|short| format!("-{short}")));
    }
    names.sort();
    names.dedup();
    names
}

/// Prints the script.
///
/// # Errors
/// stdout could not be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "aiprof", &mut script);
    if args.shell == clap_complete::Shell::Bash {
        let text = String::from_utf8_lossy(&script);
        script = for_bash(&text).into_bytes();
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&script)
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}
