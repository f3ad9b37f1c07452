//! Pages for people hold together: every relative link of a `.md` file leads to a file of the repository and, where the link names one, to a
//! heading; the book lists its pages; and a page that shows a program shows the one that is compiled.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::repository::{read, root};

/// The files below a folder whose names end so. What is built or fetched is left out.
pub(crate) fn files_below(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files_below(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

/// The lines of a page without its code blocks.
fn text(page: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    })
}

/// The target of each link, `](target)`. Code spans have no links.
fn links(page: &str) -> Vec<String> {
    let text: Vec<&str> = text(page).collect();
    let text = text.join("\n");
    let outside = text.split('`').enumerate().map(|(n, part)| if n % 2 == 0 { part } else { "code" });
    let text: String = outside.collect();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings, as forges and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = text(page).filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let (mut files, mut bad, mut followed) = (Vec::new(), Vec::new(), 0);
    files_below(&root(), ".md", &mut files);
    for file in &files {
        for link in links(&read(file)) {
            if link.contains("://") {
                continue;
            }
            let (path, heading) = link.split_once('#').map_or((&*link, None), |(path, to)| (path, Some(to)));
            let folder = file.parent().expect("a file lies in a folder");
            let target = if path.is_empty() { file.clone() } else { folder.join(path) };
            let is_there = target.exists();
            let has_heading = heading.is_none_or(|to| is_there && anchors(&read(&target)).contains(to));
            if !is_there || !has_heading {
                bad.push(format!("{}: {link}", file.display()));
            }
            followed += 1;
        }
    }
    assert!(bad.is_empty(), "these links lead nowhere: {bad:#?}");
    assert!(files.len() > 15 && followed > 60, "{} pages, {followed} links", files.len());
}

/// Paths of the repository in code spans: files by their endings, and folders.
pub(crate) fn paths(page: &str) -> BTreeSet<String> {
    let text: Vec<&str> = text(page).collect();
    let text = text.join("\n");
    let endings = [".rs", ".p4", ".proto", ".py", ".md", ".lua", ".sh", ".toml", ".json", "/"];
    let is_path = |span: &&str| {
        let letters = |c: char| c.is_ascii_alphanumeric() || "./-_".contains(c);
        let (top, rest) = span.split_once('/').unwrap_or_default();
        let is_inside = !top.is_empty() && !rest.is_empty() && top != "target";
        is_inside && span.chars().all(letters) && endings.iter().any(|ending| span.ends_with(ending))
    };
    text.split('`').skip(1).step_by(2).filter(is_path).map(str::to_owned).collect()
}

#[test]
fn every_path_that_the_map_names_is_there() {
    let tops = ["ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md", "README.md"];
    let mut files: Vec<PathBuf> = tops.iter().map(|name| root().join(name)).collect();
    files_below(&root().join("docs/src"), ".md", &mut files);
    let named: BTreeSet<(String, PathBuf)> = files
        .iter()
        .flat_map(|file| paths(&read(file)).into_iter().map(|path| (path, file.clone())).collect::<Vec<_>>())
        .collect();
    let gone: Vec<_> = named.iter().filter(|(path, _)| !root().join(path).exists()).collect();
    assert!(gone.is_empty(), "these paths do not exist: {gone:#?}");
    assert!(named.len() > 200, "{} paths", named.len());
}

/// The README is for a reader with two minutes; everything else has a page in the book.
#[test]
fn the_readme_is_short() {
    let page = read("README.md");
    let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "README.md: expected at most 100 columns, found {wide:#?}");
    let lines = page.lines().count();
    assert!(lines <= 150, "README.md: expected at most 150 lines, found {lines}; move some to docs/src/");
}

#[test]
fn the_book_has_every_page_once() {
    let source = root().join("docs/src");
    let listed = links(&read(source.join("SUMMARY.md")));
    let mut files = Vec::new();
    files_below(&source, ".md", &mut files);
    let name = |path: &PathBuf| path.strip_prefix(&source).expect("below it").display().to_string();
    let there: BTreeSet<String> = files.iter().map(name).filter(|name| name != "SUMMARY.md").collect();
    assert_eq!(listed.len(), there.len(), "each page once: {listed:?}");
    assert_eq!(BTreeSet::from_iter(listed), there);
}

/// A built book has no repository beside it: `docs/outside.py` puts paths in place of links out of it.
#[test]
fn the_built_book_has_no_links_out_of_it() {
    let mut files = Vec::new();
    files_below(&root().join("docs/src"), ".md", &mut files);
    let chapter = |content: String| json!({ "Chapter": { "content": content, "sub_items": [] } });
    let [inner, outer] = ["see [`a.rs`](../../x/a.rs#b), [x](y.md)", "[`x/`](../../x/)"];
    let mut chapters: Vec<Value> = files.iter().map(|file| chapter(read(file))).collect();
    chapters.push(chapter(outer.to_owned()));
    chapters.last_mut().expect("one")["Chapter"]["sub_items"] = json!([chapter(inner.to_owned())]);
    let mut command = Command::new(root().join("docs/outside.py"));
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED: no python3 here");
        return;
    };
    // What mdBook hands over: the context, and the book.
    let book = json!([{}, { "items": chapters }]).to_string();
    child.stdin.take().expect("a pipe").write_all(book.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let book: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let chapters = book["items"].as_array().expect("chapters");
    assert_eq!(chapters.len(), files.len() + 1);
    for chapter in chapters {
        assert!(!chapter["Chapter"]["content"].as_str().expect("text").contains("](../"), "{chapter}");
    }
    let last = &chapters[files.len()]["Chapter"];
    assert_eq!(last["content"], "`x/`");
    assert_eq!(last["sub_items"][0]["Chapter"]["content"], "see `a.rs` (`x/a.rs`), [x](y.md)");
}

#[test]
fn the_page_shows_the_program_that_is_compiled() {
    let program = read("processes/examples/embedded.rs");
    let code = &program[program.find("\nuse ").expect("it uses crates") + 1..];
    let page = read("docs/src/embed.md");
    assert!(page.contains(&format!("```rust\n{code}```\n")), "docs/src/embed.md shows another program");
    let program = read("client/examples/bank/program.rs");
    let page = read("docs/src/transactions.md");
    assert!(
        page.contains(&format!("```rust\n{program}```\n")),
        "docs/src/transactions.md shows another program"
    );
    let program = read("client/examples/twelve_lines/program.rs");
    for page in ["docs/src/embed.md", "README.md"] {
        let shown = read(page).contains(&format!("```rust\n{program}```\n"));
        assert!(shown, "{page} shows another program than client/examples/twelve_lines/program.rs");
    }
}
