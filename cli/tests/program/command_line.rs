//! Completion scripts and manual pages know every command.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::common::run;

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// All commands by their names, as `topology show`.
fn commands(above: &[&str]) -> Vec<String> {
    let help = text(&[above, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let all = names.flat_map(|name| {
        let words = [above, &[name]].concat();
        [vec![words.join(" ")], commands(&words)].concat()
    });
    all.collect()
}

#[test]
fn completion_scripts_know_every_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&["completions", shell]);
        for command in commands(&[]) {
            let name = command.rsplit(' ').next().expect("a name");
            assert!(script.contains(name), "{shell}: {command}");
        }
        let path = folder.path().join(shell);
        fs::write(&path, &script).expect("a file");
        // A shell that is not installed reads nothing.
        let checked = Command::new(shell).arg("-n").arg(&path).output();
        if let Ok(output) = checked {
            assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert_eq!(run(&["completions", "ksh"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("man");
    let said = text(&["man", pages.to_str().expect("a plain path")]);
    let page = |command: &String| format!("fatbtree-{}.1", command.replace(' ', "-"));
    let expected: BTreeSet<String> =
        commands(&[]).iter().map(page).chain(["fatbtree.1".to_owned()]).collect();
    let entries = fs::read_dir(&pages).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let found: BTreeSet<String> = entries.map(|name| name.into_string().expect("UTF-8")).collect();
    assert_eq!(found, expected);
    assert!(said.starts_with(&format!("{} manual pages in ", expected.len())), "{said}");
    fs::write(pages.join("notes.txt"), "").expect("a file");
    assert_eq!(text(&["man", pages.to_str().expect("a plain path")]), said, "other files are not counted");
    let get = fs::read_to_string(pages.join("fatbtree-get.1")).expect("text");
    assert!(get.contains(".TH fatbtree") && get.contains("Exit codes"), "{get}");
    assert_eq!(run(&["man", "/dev/null/man"]).status.code(), Some(1));
}
