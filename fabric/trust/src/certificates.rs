//! Making certificates: an authority of its own for each set, which is forgotten when the set is made. What is read of them is in
//! [`own`](crate::own).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::QUERY_SECRET;

/// Default validity of a set of certificates, in days.
pub const DAYS: u32 = 365;

/// Maximum validity of a set, in days: a hundred years. Dates beyond the year 9999 cannot be in a certificate.
pub const MOST_DAYS: u32 = 36_500;

/// Time before its creation from which a set is valid, because clocks of other machines may be behind.
const SKEW: Duration = Duration::hours(1);

/// Errors from making a set of certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// A set exists already.
    #[error("{} is there already: nothing is overwritten; name another folder, or move this one away", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("writing {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A name that cannot be in a certificate.
    #[error("making a certificate for {name:?}")]
    Certificate {
        /// The name.
        name: String,
        /// Why not.
        source: rcgen::Error,
    },
}

/// Writes `ca.pem`, `NAME.pem` and `NAME.key` for each name, and the [secret of queries](QUERY_SECRET), into a folder, which is made.
/// Keys and the secret can be read by their owner only.
///
/// The authority's own key is kept nowhere: nothing can be added to a set. The certificates (ECDSA, P-256) last for `days`
/// days, up to [`MOST_DAYS`]. Returns the day on which they end, as `2027-11-24`.
///
/// # Errors
/// When there is a file of this name already, or one cannot be written.
pub fn make_certificates<'a>(
    folder: &Path,
    names: impl IntoIterator<Item = &'a str>,
    days: u32,
) -> Result<String, MakeError> {
    let failed = |name: &str| {
        let name = name.to_owned();
        move |source| MakeError::Certificate { name, source }
    };
    let now = OffsetDateTime::now_utc();
    let lasts = Lasts { from: now - SKEW, to: now + Duration::days(days.min(MOST_DAYS).into()) };
    let authority = authority(lasts).map_err(failed("the authority"))?;
    let secret: u128 = rand::random();
    let mut files = vec![
        ("ca.pem".to_owned(), authority.pem(), 0o644),
        (QUERY_SECRET.to_owned(), format!("{secret:032x}\n"), 0o600),
    ];
    for name in names {
        let (certificate, key) = role(name, lasts, &authority).map_err(failed(name))?;
        files.push((format!("{name}.pem"), certificate, 0o644));
        files.push((format!("{name}.key"), key, 0o600));
    }
    if let Some((file, ..)) = files.iter().find(|(file, ..)| folder.join(file).exists()) {
        return Err(MakeError::Exists(folder.join(file)));
    }
    let write = |source, file: &Path| MakeError::Write { file: file.to_owned(), source };
    fs::create_dir_all(folder).map_err(|source| write(source, folder))?;
    for (file, text, mode) in files {
        let file = folder.join(file);
        let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&file);
        opened.and_then(|mut open| open.write_all(text.as_bytes())).map_err(|source| write(source, &file))?;
    }
    Ok(lasts.to.date().to_string())
}

/// Period in which certificates are good.
#[derive(Clone, Copy)]
struct Lasts {
    from: OffsetDateTime,
    to: OffsetDateTime,
}

fn authority(lasts: Lasts) -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (lasts.from, lasts.to);
    params.distinguished_name.push(DnType::CommonName, "Fat-B+Tree cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

fn role(
    name: &str,
    lasts: Lasts,
    authority: &CertifiedIssuer<'static, KeyPair>,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    (params.not_before, params.not_after) = (lasts.from, lasts.to);
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, authority)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_their_owners_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        make_certificates(&set, ["left", "right"], 1).unwrap();
        for file in ["left.key", QUERY_SECRET] {
            let mode = fs::metadata(set.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let before = fs::read(set.join("ca.pem")).unwrap();
        let again = make_certificates(&set, ["left"], 1).unwrap_err();
        assert!(matches!(again, MakeError::Exists(_)), "{again}");
        assert_eq!(fs::read(set.join("ca.pem")).unwrap(), before);
    }
}
