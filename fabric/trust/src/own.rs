//! A role's own files: errors are reported when a file is read, with the file, the role and the day, and not later by a peer's TLS
//! alert.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use x509_parser::error::PEMError;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::time::ASN1Time;

use crate::TrustError;

/// Remaining validity, in seconds, below which a certificate is worth a warning.
const SOON: i64 = 30 * 24 * 3600;

/// Reads a file that every user may read.
pub(crate) fn read(file: &Path) -> Result<String, TrustError> {
    fs::read_to_string(file).map_err(|source| TrustError::Read { file: file.to_owned(), source })
}

/// Reads a file that others on this machine may not read: `what` names its content.
pub(crate) fn read_secret(file: &Path, what: &str) -> Result<String, TrustError> {
    let failed = |source| TrustError::Read { file: file.to_owned(), source };
    let mode = fs::metadata(file).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(TrustError::Exposed { file: file.to_owned(), what: what.to_owned(), mode });
    }
    read(file)
}

/// Checks that one of the authorities' certificates is good at this time. While an authority is replaced, its file has the old one and the
/// new one, and TLS believes all of them.
pub(crate) fn check_authorities(file: &Path, text: &str, now: SystemTime) -> Result<(), TrustError> {
    let (mut has_good, mut bad) = (false, Vec::new());
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        // TLS takes no part of a file that is damaged.
        let pem = pem.map_err(|error| none(file, AUTHORITY, error))?;
        match check_pem(file, &pem, None, now) {
            Ok(()) => has_good = true,
            Err(error) => bad.push(error),
        }
    }
    if !has_good {
        // The newest is last, mostly.
        return Err(bad.pop().unwrap_or_else(|| none(file, AUTHORITY, PEMError::MissingHeader)));
    }
    for error in bad {
        tracing::warn!(%error, "this certificate is left out: there is a good one beside it; remove this one from the file");
    }
    Ok(())
}

/// Checks that a certificate is good at this time, and is that of `name`. The certificates of intermediate authorities follow it in its
/// file.
pub(crate) fn check(file: &Path, text: &str, name: &str, now: SystemTime) -> Result<(), TrustError> {
    let (_, pem) = parse_x509_pem(text.as_bytes()).map_err(|error| none(file, name, error))?;
    check_pem(file, &pem, Some(name), now)
}

/// Owner of a certificate without a role's name.
const AUTHORITY: &str = "the authority";

fn none(file: &Path, whose: &str, why: impl Display) -> TrustError {
    TrustError::NoCertificate { file: file.to_owned(), whose: whose.to_owned(), why: why.to_string() }
}

/// Checks that a certificate is good, and is that of the role `name`; `None` for an authority's, which has no name.
fn check_pem(file: &Path, pem: &Pem, name: Option<&str>, now: SystemTime) -> Result<(), TrustError> {
    let whose = name.unwrap_or(AUTHORITY).to_owned();
    let certificate = pem.parse_x509().map_err(|error| none(file, &whose, error))?;
    let (begins, ends) = (certificate.validity().not_before, certificate.validity().not_after);
    if let Some(name) = name {
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names: Vec<&str> = names
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(*name),
                _ => None,
            })
            .collect();
        if !names.contains(&name) {
            let found = if names.is_empty() { "no role".to_owned() } else { names.join(", ") };
            let (file, name) = (file.to_owned(), name.to_owned());
            return Err(TrustError::OtherRole { file, name, found, ends: day(ends) });
        }
    }
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    if now < begins.timestamp() {
        return Err(TrustError::NotYet { file: file.to_owned(), whose, begins: day(begins) });
    }
    if now > ends.timestamp() {
        return Err(TrustError::Expired { file: file.to_owned(), whose, ended: day(ends) });
    }
    if ends.timestamp() - now < SOON {
        tracing::warn!(file = %file.display(), %whose, ends = %day(ends), "a certificate ends soon: make a new set in time");
    }
    Ok(())
}

/// Day in the form `2027-11-24`.
fn day(time: ASN1Time) -> String {
    time.to_datetime().date().to_string()
}

/// Reads the secret of queries in a folder, [`QUERY_SECRET`](crate::QUERY_SECRET).
///
/// # Errors
/// When the file is missing, every user can read it, or it is no secret.
pub fn query_secret(folder: &Path) -> Result<[u8; 16], TrustError> {
    let file: PathBuf = folder.join(crate::QUERY_SECRET);
    let text = read_secret(&file, "the secret of the memory servers")?;
    let digits = text.trim();
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match u128::from_str_radix(digits, 16) {
        Ok(secret) if is_hex => Ok(secret.to_be_bytes()),
        _ => Err(TrustError::NoSecret { file, found: digits.len() }),
    }
}
