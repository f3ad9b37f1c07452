//! Files that a command writes when its work is done.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A file to be written in the end. Whether it can be is found out before the work begins; until then a file that was there before
/// stays as it is.
pub(crate) struct Output(PathBuf);

impl Output {
    /// Checks the file that `option` names, if it is given.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn optional(option: &str, path: Option<&PathBuf>) -> Result<Option<Self>> {
        path.map(|path| Self::new(option, path)).transpose()
    }

    fn new(option: &str, path: &Path) -> Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let tried = match path.exists() {
            true => File::options().append(true).open(path).map(drop),
            false => tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map(drop),
        };
        tried.with_context(|| format!("{option} {} cannot be written", path.display()))?;
        Ok(Self(path.to_owned()))
    }

    /// Writes the file, and prints its name.
    pub(crate) fn write(self, what: &str, text: &str) -> Result<()> {
        self.write_beside(what, text, false)
    }

    /// Writes the file. Its name is printed, unless standard output is JSON, whose reader expects nothing else.
    pub(crate) fn write_beside(self, what: &str, text: &str, json: bool) -> Result<()> {
        let Self(path) = self;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        if !json {
            outln!("{what} in {}", path.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for path in [folder.path().join("no/such"), folder.path().to_owned()] {
            let error = Output::new("--json", &path).map(drop).expect_err("it cannot be written");
            assert!(format!("{error:#}").contains("cannot be written"), "{error:#}");
        }
    }

    #[test]
    fn a_file_changes_when_the_work_is_done() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("figures.json");
        drop(Output::new("--json", &path).expect("it can be written"));
        assert!(!path.exists());
        std::fs::write(&path, "old").expect("a file");
        let output = Output::new("--json", &path).expect("it can be written");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "old");
        output.write("figures", "new").expect("there is room");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "new");
    }
}
