//! `fatbtree shell`, from a pipe.

use std::io::Write as _;
use std::process::{Output, Stdio};

use crate::common::processes::{Role, cluster_file_like};
use crate::common::{fatbtree, run};

/// Runs the shell with these arguments, and gives it these lines.
pub(crate) fn shell(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = fatbtree();
    command.arg("shell").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary was built with this test");
    let mut stdin = child.stdin.take().expect("a pipe");
    // Answers may fill their pipe before all lines are read.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A shell that has ended reads no more.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().expect("it ends")
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// What it answers; nothing may fail.
pub(crate) fn answers(arguments: &[&str], input: &str) -> String {
    let output = shell(arguments, input.as_bytes());
    assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)), "{input}");
    text(&output.stdout).to_owned()
}

#[test]
fn every_command_does_what_it_says() {
    let input = "
        # a comment, and an empty line

        get 1
        put 1 one
        get 1
        insert 1 uno
        insert 2 \"two words\"
        update 3 three
        update 1 eins
        cas 1 one uno
        cas 1 eins \"say \\\"uno\\\"\"
        cas 9 a b
        put 0xffffffffffffffff 0x00ff
        put 0 \"\"
        scan 0 0xffffffffffffffff
        rscan 1 18446744073709551615 2
        scan 1 2 0
        len
        delete 2
        delete 2
        get 2
        len
        quit
        not reached";
    let expected = "\
not there
ok
one
there already
inserted
not there
updated
not set
set
not set
ok
ok
0 \"\"
1 \"say \"uno\\\"\"
2 \"two words\"
18446744073709551615 0x00ff
18446744073709551615 0x00ff
2 \"two words\"
4
deleted
not there
not there
3
"
    .replace("\"say \"uno\\\"\"", "\"say \\\"uno\\\"\"");
    assert_eq!(answers(&[], input), expected);
}

#[test]
fn trees_of_any_shape_grow_and_shrink() {
    let shapes: [&[&str]; 5] = [
        &[],
        &["--value-size", "8", "--fan-out", "4", "--leaf-bytes", "256"],
        &["--servers", "3", "--leaf-bytes", "256", "--fan-out", "3", "--cache", "4096"],
        &["--leaf-bytes", "4096", "--fan-out", "64", "--cache", "100000"],
        &["--servers", "2", "--leaf-bytes", "256", "--fan-out", "4", "--round-robin"],
    ];
    for shape in shapes {
        let value =
            |key: u64| if shape.contains(&"--value-size") { format!("{key:08}") } else { format!("v{key}") };
        let mut input = "load 2000\nverify\nlen\nget 1234\nrscan 5 7\n".to_owned();
        (1..=1990).for_each(|key| input += &format!("delete {key}\n"));
        input += "verify\nlen\nscan 0 0xffffffffffffffff\nstats\n";
        for arguments in [shape.to_vec(), [shape, &["--keys", "2000"]].concat()] {
            let found = answers(&arguments, &input);
            let lines: Vec<&str> = found.lines().filter(|line| *line != "deleted").collect();
            assert_eq!(lines[0], "ok", "{arguments:?}");
            assert!(lines[1].starts_with("whole: 2000 keys in "), "{arguments:?}: {}", lines[1]);
            let scanned = [7, 6, 5].map(|key| format!("{key} {}", value(key)));
            assert_eq!(lines[2..4], ["2000", &value(1234)], "{arguments:?}");
            assert_eq!(lines[4..7], scanned, "{arguments:?}");
            assert!(lines[7].starts_with("whole: 10 keys in "), "{arguments:?}: {}", lines[7]);
            let scanned: Vec<String> = (1991..=2000).map(|key| format!("{key} {}", value(key))).collect();
            assert_eq!(
                (lines[8], &lines[9..19]),
                ("10", &scanned.iter().map(String::as_str).collect::<Vec<_>>()[..])
            );
            assert!(lines[19].starts_with("gets, changes, scans and loads: 1994; "), "{}", lines[19]);
            assert!(!lines[20].contains(" merges 0"), "{}", lines[20]);
            let is_cached = shape.contains(&"--cache");
            assert_eq!(lines[21].starts_with("cache: 0 bytes"), !is_cached, "{}", lines[21]);
            assert_eq!(lines.len(), 22);
        }
    }
}

#[test]
fn round_trips_are_told() {
    let input = "get 500\nget 500\nput 500 x\nput 500 y\nscan 1 2\nlen\nverify\nload 1\nstats\n";
    let found = answers(&["--keys", "1000", "--trips", "--cache", "1000000"], input);
    let trips: Vec<&str> = found.lines().filter(|line| line.starts_with('(')).collect();
    assert_eq!(trips.len(), 8, "{found}");
    // Two levels above the leaf, and the leaf; then the cache knows the leaf.
    assert_eq!(trips[..2], ["(3 round trips)", "(1 round trip)"], "{found}");
    assert_eq!(trips[3], "(2 round trips)", "{found}");
}

#[test]
fn what_cannot_be_is_told_with_its_line_and_the_shell_goes_on() {
    let input = "\
put 1 one
frob 1
get
get 1 2
get x
get 18446744073709551616
get -1
get \"1\"
put 1 0x123
put 1 0xzz
put 1 \"open
put 1 \"a\"b
put 1 \"\\n\"
scan 2 1
scan 1 2 3 4
load x
GET 1
get 1
";
    let output = shell(&[], input.as_bytes());
    assert_eq!(text(&output.stdout), "ok\none\n");
    let errors: Vec<&str> = text(&output.stderr).lines().collect();
    for (error, line) in errors.iter().zip(2..) {
        assert!(error.starts_with(&format!("line {line}: ")) || line == 18, "{line}: {error}");
    }
    assert_eq!(errors[0], "line 2: \"frob\" is no command; type help to see all");
    assert_eq!(errors[1], "line 3: expected `get K`, found 0 words after get");
    assert_eq!(errors[13], "line 15: expected `scan A B [LIMIT]`, found 4 words after scan");
    assert_eq!(errors[16..], ["error: 16 of 18 lines failed"]);
    assert_eq!(output.status.code(), Some(1));

    let output = shell(&[], b"put 1 a\xff\nget 1");
    assert_eq!((text(&output.stdout), output.status.code()), ("not there\n", Some(1)));
    assert!(text(&output.stderr).contains("not UTF-8"), "{}", text(&output.stderr));
}

#[test]
fn values_have_up_to_a_mebibyte() {
    let most = "x".repeat(1 << 20);
    let hex = format!("0x{}", "00".repeat(1 << 20));
    let input = format!(
        "put 1 {most}\nput 2 {hex}\ncas 2 {hex} \"{}\"\nget 1\nscan 1 2\nput 3 {most}x\nput 4 {most}{most}{most}{most}{most}\nlen\nverify\n",
        "\\\"".repeat(1 << 20)
    );
    let output = shell(&[], input.as_bytes());
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines[..3], ["ok", "ok", "set"]);
    assert!(lines[3] == most && lines[4] == format!("1 {most}"));
    // Quotes in the middle of a value without spaces need none around it, but this one begins with one.
    assert!(lines[5] == format!("2 \"{}\"", "\\\"".repeat(1 << 20)));
    assert_eq!(lines[6], "2");
    assert!(lines[7].starts_with("whole: 2 keys in "));
    let errors = text(&output.stderr);
    assert!(errors.contains("line 6: key 0x3: a value of 1048577 bytes was given"), "{errors}");
    assert!(errors.contains("line 7: the line is longer than"), "{errors}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn inline_values_have_their_size() {
    let output = shell(&["--value-size", "3"], b"put 1 abc\nput 1 abcd\nget 1\n");
    assert_eq!(text(&output.stdout), "ok\nabc\n");
    assert!(text(&output.stderr).starts_with("line 2: key 0x1: a value of 4 bytes was given"));
}

#[test]
fn a_tree_without_room_says_so_and_goes_on() {
    // Two chunks.
    let spare = (2 * (8 << 20)).to_string();
    let value = "x".repeat(1 << 20);
    let puts: String = (0..20).map(|key| format!("put {key} {value}\n")).collect();
    let output = shell(
        &["--spare", &spare],
        format!("{puts}get 0\ndelete 0\nput 99 {value}\nlen\nverify\n").as_bytes(),
    );
    let errors = text(&output.stderr);
    assert!(errors.contains("memory server 0 gives no more memory for records"), "{errors}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let put = lines.iter().take_while(|line| **line == "ok").count();
    assert!((6..20).contains(&put), "{put}");
    assert!(lines[put] == value);
    assert_eq!(lines[put + 1..put + 4], ["deleted", "ok", &put.to_string()]);
    assert!(lines[put + 4].starts_with("whole: "));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let refused: [&[&str]; 8] = [
        &["--servers", "0"],
        &["--fan-out", "2"],
        &["--leaf-bytes", "100"],
        &["--leaf-bytes", "8192"],
        &["--value-size", "65"],
        &["--value-size", "0"],
        &["--keys", "x"],
        &["a-file"],
    ];
    for arguments in refused {
        let output = run(&[&["shell"][..], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{arguments:?}");
    }
}

/// The quick start's transcript, and the last example of `--help`.
#[test]
fn what_the_pages_show_is_what_happens() {
    let page = include_str!("../../../docs/src/quick-start.md");
    let begin = "```console\n$ fatbtree shell --keys 100000 --cache 1000000 --trips\n";
    let (_, rest) = page.split_once(begin).expect("the page has a transcript of the shell");
    let (transcript, _) = rest.split_once("```").expect("it ends");
    let commands: String = transcript
        .lines()
        .filter_map(|line| line.strip_prefix("> "))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let expected: String = transcript
        .lines()
        .filter(|line| !line.starts_with("> "))
        .map(|line| line.to_owned() + "\n")
        .collect();
    assert_eq!(answers(&["--keys", "100000", "--cache", "1000000", "--trips"], &commands), expected);
    assert_eq!(answers(&[], "put 1 one\nget 1\n"), "ok\none\n");
}

#[test]
fn a_running_cluster_is_spoken_to_by_the_same_commands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster]);
    up.until("ready");
    let input = "
        # a comment
        get 1
        put 1 one
        insert 1 uno
        update 3 three
        cas 1 one \"two words\"
        put 0xffffffffffffffff 0x00ff
        scan 0 0xffffffffffffffff
        scan 0 0xffffffffffffffff 1
        delete 1
        delete 1
        load 300
        get 300
        len
        quit
        get 1";
    let expected = "\
not there
ok
there already
not there
set
ok
1 \"two words\"
18446744073709551615 0x00ff
1 \"two words\"
deleted
not there
ok
v300
301
";
    let options = ["--cluster", cluster, "--client", "client"];
    assert_eq!(answers(&options, input), expected);
    assert!(answers(&options, "get 300\nstats").contains("\ngets, changes, scans and loads: 1; "));
    let output = shell(&options, b"begin\nrscan 299 300\nverify\nget 300\n");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(lines[2].starts_with("whole: 301 keys in "), "{lines:?}");
    assert_eq!((&lines[..2], &lines[3..]), (&["300 v300", "299 v299"][..], &["v300"][..]));
    let errors = text(&output.stderr);
    assert!(errors.contains("line 1: a tree has no transactions"), "{errors}");
    assert!(errors.contains("1 of 4 lines failed") && output.status.code() == Some(1), "{errors}");
    for bad in [&["--client", "client"][..], &["--cluster", cluster, "--keys", "3"]] {
        assert_eq!(shell(bad, b"").status.code(), Some(2), "{bad:?}");
    }
    let unknown = shell(&["--cluster", cluster, "--client", "nobody"], b"");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(up.stop("INT").success());
}
