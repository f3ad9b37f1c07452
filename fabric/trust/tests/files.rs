//! What is wrong with a role's own files is told when they are read: which file, whose it is, and the day.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fatbtree_trust::{QUERY_SECRET, Trust, make_certificates, query_secret};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What reading a role's files ends with: nothing, or what is wrong with them.
fn told(folder: &Path, name: &str, now: SystemTime) -> String {
    Trust::read_at(folder, name, now).map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn certificates_last_as_long_as_was_asked_for_and_say_when_they_have_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let ends = make_certificates(folder.path(), ["left"], 40).expect("a set");
    let now = SystemTime::now();
    let read = |at| told(folder.path(), "left", at);
    assert_eq!(read(now), "");
    assert_eq!(read(now + 39 * DAY), "");
    let ended = read(now + 41 * DAY);
    // The authority's own certificate comes first.
    assert!(
        ended.contains("ca.pem: the certificate of the authority ended on ") && ended.contains(&ends),
        "{ended}"
    );
    let early = read(now - DAY);
    assert!(early.contains("ca.pem: the certificate of the authority begins on 20"), "{early}");
    // Of a set that was made earlier, only one is old.
    let old = tempfile::tempdir().expect("a folder");
    make_certificates(old.path(), ["left"], 10).expect("a set");
    fs::copy(folder.path().join("ca.pem"), old.path().join("ca.pem")).expect("copied");
    let ended = told(old.path(), "left", now + 11 * DAY);
    assert!(ended.contains("left.pem: the certificate of left ended on 20"), "{ended}");
}

/// While an authority is replaced, all roles have both certificates: the day on which the old one ends is a day like others.
#[test]
fn of_several_authorities_one_must_be_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    let old_ends = make_certificates(&old, ["left"], 10).expect("a set");
    let new_ends = make_certificates(&new, ["left"], 40).expect("a set");
    let [first, second] =
        [&old, &new].map(|set| fs::read_to_string(set.join("ca.pem")).expect("it was made"));
    let now = SystemTime::now();
    let read = |text: &str, after| {
        fs::write(new.join("ca.pem"), text).expect("written");
        told(&new, "left", now + after * DAY)
    };
    for both in [format!("{first}{second}"), format!("{second}\nabout the old one:\n{first}\n")] {
        assert_eq!(read(&both, 0), "");
        assert_eq!(read(&both, 11), "", "the new one is good");
        let ended = read(&both, 41);
        assert!(ended.contains("ca.pem: the certificate of the authority ended on "), "{ended}");
        assert!(ended.contains(&old_ends) || ended.contains(&new_ends), "{ended}");
    }
    // What is no certificate at all beside a good one is left out, and a damaged file is told.
    let key = fs::read_to_string(new.join("left.key")).expect("it was made");
    assert_eq!(read(&format!("{key}{second}"), 0), "");
    let damaged = read(&format!("{second}{}", first.replacen("-----END", "", 1)), 0);
    assert!(
        damaged.contains("ca.pem: expected the certificate of the authority in PEM, found none"),
        "{damaged}"
    );
    let empty = read("nothing", 0);
    assert!(
        empty.contains("ca.pem: expected the certificate of the authority in PEM, found none"),
        "{empty}"
    );
}

#[test]
fn another_roles_certificate_is_told_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let ends = make_certificates(folder.path(), ["left", "right"], 40).expect("a set");
    for end in ["pem", "key"] {
        let file = |name: &str| folder.path().join(format!("{name}.{end}"));
        fs::copy(file("right"), file("left")).expect("copied");
    }
    let other = told(folder.path(), "left", SystemTime::now());
    let expected =
        format!("left.pem: expected the certificate of left, found that of right (it ends on {ends})");
    assert!(other.contains(&expected), "{other}");
    fs::write(folder.path().join("left.pem"), "nothing").expect("written");
    let none = told(folder.path(), "left", SystemTime::now());
    assert!(none.contains("left.pem: expected the certificate of left in PEM, found none"), "{none}");
}

#[test]
fn secrets_that_everybody_can_read_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    make_certificates(folder.path(), ["left"], 40).expect("a set");
    let set = |file: &str, mode: u32| {
        fs::set_permissions(folder.path().join(file), Permissions::from_mode(mode)).expect("it is ours");
    };
    let secret = || query_secret(folder.path());
    let first = secret().expect("it was made");
    for mode in [0o644, 0o604, 0o666] {
        set("left.key", mode);
        let exposed = told(folder.path(), "left", SystemTime::now());
        let expected = format!(
            "left.key: expected the key of left, readable by its owner alone, found that every user of this machine \
             can read it (mode {mode:o})"
        );
        assert!(exposed.contains(&expected), "{exposed}");
        set(QUERY_SECRET, mode);
        let exposed = secret().expect_err("it is no secret").to_string();
        assert!(exposed.contains("queries.secret: expected the secret of the memory servers"), "{exposed}");
    }
    // A group of its owner's choice may.
    for mode in [0o400, 0o640] {
        set("left.key", mode);
        set(QUERY_SECRET, mode);
        assert_eq!(told(folder.path(), "left", SystemTime::now()), "");
        assert_eq!(secret().expect("it is one"), first);
    }
}

#[test]
fn each_set_has_a_secret_of_its_own_and_what_is_none_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    make_certificates(&one, ["left"], 40).expect("a set");
    make_certificates(&other, ["left"], 40).expect("a set");
    assert_ne!(query_secret(&one).expect("a secret"), query_secret(&other).expect("a secret"));
    for (wrong, found) in
        [("", "found 0 characters"), ("+0112233445566778899aabbccddeeff", "32"), ("00", "found 2")]
    {
        fs::write(one.join(QUERY_SECRET), wrong).expect("written");
        let refused = query_secret(&one).expect_err("it is none").to_string();
        assert!(
            refused.contains("queries.secret: expected 32 hexadecimal digits") && refused.contains(found),
            "{refused}"
        );
    }
    fs::remove_file(one.join(QUERY_SECRET)).expect("removed");
    assert!(query_secret(&one).expect_err("it is gone").to_string().contains("is it there?"));
}
