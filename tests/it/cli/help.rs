//! Help texts.

use std::process::Command;

fn help(command: &[String]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_infradev")).args(command).arg("--help").output().expect("it runs");
    assert!(output.status.success(), "infradev {command:?} --help");
    String::from_utf8(output.stdout).expect("text")
}

/// The commands that `infradev COMMAND --help` lists.
fn below(command: &[String]) -> Vec<Vec<String>> {
    let text = help(command);
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return vec![] };
    let lines = list.lines().take_while(|line| !line.trim().is_empty());
    let names = lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(|name| [command, &[name.to_owned()]].concat()).collect()
}

/// Every command, with those below it.
pub(crate) fn commands() -> Vec<Vec<String>> {
    let first = below(&[]);
    let second: Vec<_> = first.iter().flat_map(|command| below(command)).collect();
    [first, second].concat()
}

#[test]
fn every_command_explains_itself() {
    let commands = commands();
    assert!(commands.len() > 25, "found only {commands:?}");
    for command in commands {
        let text = help(&command);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.len() > 10, "infradev {command:?} --help begins with {first:?}");
        for option in text.lines().map(str::trim).filter(|line| line.starts_with("--") && !line.contains(' '))
        {
            // With --help, an option's text is on the next line; an option without any text is a hole.
            assert!(text.contains(&format!("{option}\n")), "{option}");
        }
    }
}

#[test]
fn the_exit_codes_are_documented() {
    let text = help(&[]);
    for words in
        ["0 done", "1 the work failed", "2 usage", "3 infrastructure", "4 not here", "130 interrupted", "125"]
    {
        assert!(text.contains(words), "{words}");
    }
}
