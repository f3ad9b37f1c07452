//! YCSB's six core workloads, as files of ours under `workloads/`.

use super::names::nearest;
use super::properties::Properties;

/// Names of the built-in workloads.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

const TEXTS: [&str; 6] = [
    include_str!("../../workloads/a.properties"),
    include_str!("../../workloads/b.properties"),
    include_str!("../../workloads/c.properties"),
    include_str!("../../workloads/d.properties"),
    include_str!("../../workloads/e.properties"),
    include_str!("../../workloads/f.properties"),
];

/// Error: no built-in workload has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a built-in workload, a to f, found `{found}`{}; to read a file, give its path", near(.nearest)
)]
pub struct UnknownWorkload {
    /// Name that was asked for.
    pub found: String,
    /// The most similar name.
    pub nearest: Option<&'static str>,
}

fn near(nearest: &Option<&'static str>) -> String {
    nearest.map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
}

/// The properties of a built-in workload: `a` to `f`, of any case, also as `workloada`.
///
/// Its counts are YCSB's toy sizes; [`Properties::set`] `recordcount` and `operationcount` to real ones.
pub fn builtin(name: &str) -> Result<Properties, UnknownWorkload> {
    let lower = name.to_ascii_lowercase();
    let letter = lower.strip_prefix("workload").unwrap_or(&lower);
    let Some(at) = NAMES.iter().position(|known| *known == letter) else {
        let nearest = nearest(letter, NAMES).filter(|known| letter.starts_with(known));
        return Err(UnknownWorkload { found: name.to_owned(), nearest });
    };
    Ok(Properties::parse(&format!("workload {}", NAMES[at]), TEXTS[at])
        .expect("the built-in files are parsed by a test"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::{RequestDistribution, WorkloadSpec};

    /// The table of YCSB's core workloads: read, update, insert, scan, read-modify-write; distribution.
    #[test]
    fn the_six_are_those_of_ycsb() {
        let zipfian = RequestDistribution::Zipfian { theta: 0.99 };
        let latest = RequestDistribution::Latest { theta: 0.99 };
        let table = [
            ("a", [0.5, 0.5, 0.0, 0.0, 0.0], zipfian),
            ("b", [0.95, 0.05, 0.0, 0.0, 0.0], zipfian),
            ("c", [1.0, 0.0, 0.0, 0.0, 0.0], zipfian),
            ("d", [0.95, 0.0, 0.05, 0.0, 0.0], latest),
            ("e", [0.0, 0.0, 0.05, 0.95, 0.0], zipfian),
            ("f", [0.5, 0.0, 0.0, 0.0, 0.5], zipfian),
        ];
        for (name, proportions, distribution) in table {
            let spec = WorkloadSpec::from_properties(&builtin(name).unwrap()).unwrap();
            assert_eq!(spec.proportions.as_array(), proportions, "workload {name}");
            assert_eq!(spec.distribution, distribution, "workload {name}");
            assert_eq!((spec.record_count, spec.operation_count), (1000, 1000));
            assert_eq!(spec.value_length(), 1000);
            assert_eq!(spec.notes, [""; 0], "workload {name}");
            if name == "e" {
                assert_eq!(spec.max_scan_length, 100);
            }
        }
    }

    #[test]
    fn names_are_forgiving_but_not_guessing() {
        assert!(builtin("WorkloadC").is_ok());
        assert!(builtin("C").is_ok());
        let error = builtin("g").unwrap_err().to_string();
        assert!(error.contains("a to f") && error.contains("`g`"), "{error}");
        assert!(builtin("").is_err());
    }
}
