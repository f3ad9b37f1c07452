//! The pages for readers of the code name what is there, all of it: folders, crates, campaigns, formats of structures. The lists of files
//! in CONTRIBUTING.md are those of their examples. And code without I/O has one type of time.

use std::collections::BTreeSet;
use std::fs;

use fatbtree_sim::campaigns;

use crate::common::repository::{read, root};
use crate::pages::{files_below, paths};

/// The folders of a folder that hold something of the repository.
fn folders(path: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(path)).expect("a readable folder");
    let named = entries.filter_map(|entry| {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name()?.to_str()?.to_owned();
        let is_ours = !name.starts_with('.') && name != "target";
        (path.is_dir() && is_ours).then_some(name)
    });
    named.collect()
}

/// The folders of the crates of the workspace.
fn members() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let (_, list) = manifest.split_once("members = [").expect("a workspace has members");
    let (list, _) = list.split_once(']').expect("the list ends");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A part of a page: what stands below a heading, up to the next one of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().expect("a heading has a level");
    let (_, rest) =
        page.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    rest.split(&format!("\n{level} ")).next().expect("something")
}

#[test]
fn the_architecture_is_short_and_has_every_folder_and_crate() {
    let page = read("ARCHITECTURE.md");
    let lines = page.lines().count();
    assert!(lines <= 150, "ARCHITECTURE.md: expected at most 150 lines to read, found {lines}");
    let parts = section(&page, "## Parts");
    let drawing = parts.split("```").nth(1).expect("a drawing");
    for folder in folders("") {
        assert!(drawing.contains(&folder), "ARCHITECTURE.md: the drawing has no {folder}/");
    }
    for member in members() {
        let (top, _) = member.split_once('/').unwrap_or((&member, ""));
        let manifest = read(format!("{member}/Cargo.toml"));
        let package = manifest.split("name = \"").nth(1).and_then(|rest| rest.split('"').next());
        let package = package.expect("a crate has a name");
        let name = package.strip_prefix("fatbtree-").unwrap_or(package);
        let row = parts.lines().find(|line| line.starts_with(&format!("| `{top}/` |")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md: no row for {top}/"));
        let has_it = [format!("`{name}`"), format!("`{package}`")].iter().any(|name| row.contains(name));
        assert!(has_it, "ARCHITECTURE.md: the row of {top}/ has no crate {name}");
    }
}

/// Drivers: folders and files in which the system's time may be named. All other code is given time as [`fatbtree_verbs::time`].
const DRIVERS: [&str; 16] = [
    "cli/src/",
    "client/src/",
    "controller/src/grpc/",
    "controller/src/push.rs",
    "fabric/dpdk/src/",
    "fabric/ibverbs/src/",
    "fabric/port/src/",
    "fabric/trust/src/",
    "fabric/verbs/src/journal/disk.rs",
    "fabric/verbs/src/time.rs",
    "memserver/src/grpc/",
    "processes/src/",
    "sim/src/seeds.rs",
    "sim/src/threads/",
    "structures/blink/host/src/grpc/",
    "switch/p4runtime/src/",
];

#[test]
fn the_time_of_the_system_is_named_by_drivers_only() {
    let (mut sources, mut unused) = (Vec::new(), BTreeSet::from(DRIVERS));
    members().iter().for_each(|member| files_below(&root().join(member).join("src"), ".rs", &mut sources));
    for source in sources {
        let text = read(&source);
        if ["std::time", "core::time", "tokio::time"].iter().any(|module| text.contains(module)) {
            let file = source.strip_prefix(root()).expect("a file of the repository").display().to_string();
            let driver = DRIVERS.iter().find(|driver| file.starts_with(**driver));
            let driver = driver.unwrap_or_else(|| {
                panic!("{file} names the system's time, and is no driver: take an Instant of fatbtree_verbs::time")
            });
            unused.remove(driver);
        }
    }
    assert!(unused.is_empty(), "these do not name the system's time any more: {unused:?}");
}

#[test]
fn every_campaign_is_a_row_of_the_invariants() {
    let page = read("docs/src/invariants.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    for campaign in &campaigns::ALL {
        let name = format!("`{}`", campaign.name);
        let is_there = rows.iter().any(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&name)));
        assert!(is_there, "docs/src/invariants.md: no row for the campaign {name}");
    }
}

#[test]
fn every_structure_has_its_formats() {
    let page = read("docs/src/formats.md");
    let formats = section(&page, "## Memory formats");
    // A structure's hosts and clients are folders of it, or beside it.
    let structures =
        folders("structures").into_iter().filter(|name| !name.contains('-') && name != "registry");
    for structure in structures {
        let path = format!("`structures/{structure}/src/");
        assert!(formats.contains(&path), "docs/src/formats.md: no memory format of {structure}");
    }
}

#[test]
fn the_recipes_list_the_files_of_their_examples() {
    let page = read("CONTRIBUTING.md");
    let recipes: Vec<&str> = section(&page, "## Recipes").split("\n### ").skip(1).collect();
    assert_eq!(recipes.len(), 4, "structure, table, command, figure");
    for recipe in recipes {
        let title = recipe.lines().next().unwrap_or_default();
        let example = recipe.split("Example: `").nth(1).and_then(|rest| rest.split('`').next());
        let example = example.unwrap_or_else(|| panic!("{title}: no example"));
        let files: Vec<String> = paths(recipe).into_iter().filter(|path| !path.ends_with('/')).collect();
        assert!(files.len() >= 5, "{title}: {files:?}");
        for file in files {
            let names_it = file.contains(example) || read(&file).to_lowercase().contains(example);
            assert!(names_it, "CONTRIBUTING.md, {title}: {file} does not name {example}");
        }
    }
}
