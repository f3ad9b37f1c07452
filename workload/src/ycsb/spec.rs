//! A workload file, read and checked: what to load and which operations to draw.

use thiserror::Error;

use super::distribution::{RequestDistribution, ScanLengthDistribution};
use super::names::{KNOWN, Standing, nearest, standing};
use super::properties::{Origin, Properties, PropertiesError, Property};
use super::zipf::DEFAULT_THETA;

/// Mapping from record numbers to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertOrder {
    /// Keys scattered over the key space by YCSB's hash.
    Hashed,
    /// Keys equal to the record numbers.
    Ordered,
}

/// Weights of the five operations; only their ratios matter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proportions {
    /// Point reads.
    pub read: f64,
    /// Overwrites of an existing record.
    pub update: f64,
    /// New records.
    pub insert: f64,
    /// Range reads.
    pub scan: f64,
    /// Reads followed by an overwrite of the same record.
    pub read_modify_write: f64,
}

impl Proportions {
    /// The weights, in the order of [`super::OperationKind::ALL`].
    pub fn as_array(&self) -> [f64; 5] {
        [self.read, self.update, self.insert, self.scan, self.read_modify_write]
    }
}

/// A checked workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadSpec {
    /// Records in the tree when the run starts.
    pub record_count: u64,
    /// Operations of the run.
    pub operation_count: u64,
    /// First record that requests are drawn from.
    pub insert_start: u64,
    /// Number of records, from there, that requests are drawn from.
    pub insert_count: u64,
    /// Weights of the operations.
    pub proportions: Proportions,
    /// Distribution of the records that operations touch.
    pub distribution: RequestDistribution,
    /// Shortest scan, in records.
    pub min_scan_length: u32,
    /// Longest scan, in records.
    pub max_scan_length: u32,
    /// Distribution of scan lengths between the two.
    pub scan_length_distribution: ScanLengthDistribution,
    /// Fields of a record.
    pub field_count: u32,
    /// Bytes of a field.
    pub field_length: u32,
    /// Mapping from record numbers to keys.
    pub insert_order: InsertOrder,
    /// Notes on properties that were accepted without effect, each with its line and the reason.
    pub notes: Vec<String>,
}

/// Reasons for which a workload file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The file violates the `.properties` syntax.
    #[error(transparent)]
    Syntax(#[from] PropertiesError),
    /// The property does not exist.
    #[error("{file}, {origin}: unknown property `{name}`{}", hint(.nearest))]
    Unknown {
        /// The file.
        file: String,
        /// Source of the property.
        origin: Origin,
        /// The name.
        name: String,
        /// The most similar known name.
        nearest: Option<&'static str>,
    },
    /// The property is one of YCSB's that is not supported here.
    #[error("{file}, {origin}: property `{name}` is one of YCSB's that is not supported here: {why}")]
    Unsupported {
        /// The file.
        file: String,
        /// Source of the property.
        origin: Origin,
        /// The name.
        name: String,
        /// Reason, and advice.
        why: String,
    },
    /// The value does not fit the property.
    #[error("{file}, {origin}: `{name}` must be {expected}, found `{found}`")]
    Value {
        /// The file.
        file: String,
        /// Source of the property.
        origin: Origin,
        /// The name.
        name: String,
        /// Values that would fit.
        expected: String,
        /// Value found.
        found: String,
    },
    /// A property is missing without which there is no workload.
    #[error("{file}: property `{name}` is missing; add a line `{name}=…`")]
    Missing {
        /// The file.
        file: String,
        /// The name.
        name: &'static str,
    },
    /// Values that contradict each other.
    #[error("{file}: {what}")]
    Contradiction {
        /// The file.
        file: String,
        /// The contradiction, and advice.
        what: String,
    },
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or("; no known name is near it".to_owned(), |name| format!("; did you mean `{name}`?"))
}

impl WorkloadSpec {
    /// Reads a workload file; errors call it `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, SpecError> {
        Self::from_properties(&Properties::parse(file, text)?)
    }

    /// Checks properties, with YCSB's defaults for those that are not given.
    pub fn from_properties(properties: &Properties) -> Result<Self, SpecError> {
        let notes = check_names(properties)?;
        let reader = Reader { properties };
        reader.workload_class()?;
        let spec = WorkloadSpec {
            record_count: reader.required_count("recordcount")?,
            operation_count: reader.required_count("operationcount")?,
            insert_start: reader.integer("insertstart", 0)?,
            insert_count: 0,
            proportions: Proportions {
                read: reader.share("readproportion", 0.95)?,
                update: reader.share("updateproportion", 0.05)?,
                insert: reader.share("insertproportion", 0.0)?,
                scan: reader.share("scanproportion", 0.0)?,
                read_modify_write: reader.share("readmodifywriteproportion", 0.0)?,
            },
            distribution: reader.distribution()?,
            min_scan_length: reader.small("minscanlength", 1)?,
            max_scan_length: reader.small("maxscanlength", 1000)?,
            scan_length_distribution: reader.choice(
                "scanlengthdistribution",
                "uniform",
                &[("uniform", ScanLengthDistribution::Uniform), ("zipfian", ScanLengthDistribution::Zipfian)],
            )?,
            field_count: reader.small("fieldcount", 10)?,
            field_length: reader.small("fieldlength", 100)?,
            insert_order: reader.choice(
                "insertorder",
                "hashed",
                &[("hashed", InsertOrder::Hashed), ("ordered", InsertOrder::Ordered)],
            )?,
            notes,
        };
        reader.choice("fieldlengthdistribution", "constant", &[("constant", ())])?;
        reader.choice("readallfields", "true", &[("true", ())])?;
        spec.complete(&reader)
    }

    /// Bytes of a value.
    pub fn value_length(&self) -> usize {
        self.field_count as usize * self.field_length as usize
    }

    fn complete(mut self, reader: &Reader<'_>) -> Result<Self, SpecError> {
        let contradiction =
            |what: String| SpecError::Contradiction { file: reader.properties.file().to_owned(), what };
        let rest = self.record_count.saturating_sub(self.insert_start);
        self.insert_count = reader.integer("insertcount", rest)?;
        if self.insert_count == 0 || self.insert_count > rest {
            return Err(contradiction(format!(
                "insertstart ({}) and insertcount ({}) must name at least 1 record below recordcount ({}); lower them or \
                 raise recordcount",
                self.insert_start, self.insert_count, self.record_count
            )));
        }
        if self.min_scan_length > self.max_scan_length {
            return Err(contradiction(format!(
                "minscanlength ({}) must not exceed maxscanlength ({}); swap them?",
                self.min_scan_length, self.max_scan_length
            )));
        }
        let sum: f64 = self.proportions.as_array().iter().sum();
        if sum <= 0.0 {
            return Err(contradiction(
                "the proportions of all operations are 0; set at least one, such as readproportion=1"
                    .to_owned(),
            ));
        }
        if (sum - 1.0).abs() > 1e-9 {
            // YCSB normalises too, and its default updateproportion=0.05 makes this easy to run into.
            self.notes.push(format!(
                "the proportions (with YCSB's defaults for those not given) sum to {sum}; each was divided by that"
            ));
        }
        Ok(self)
    }
}

/// Refuses unknown and unsupported names; returns notes on those without effect.
fn check_names(properties: &Properties) -> Result<Vec<String>, SpecError> {
    let mut notes = Vec::new();
    for Property { name, origin, .. } in properties.iter() {
        let (file, origin, name) = (properties.file().to_owned(), origin.clone(), name.clone());
        match standing(&name) {
            Some(Standing::Used) => {}
            Some(Standing::NoEffect(why)) => {
                notes.push(format!("{file}, {origin}: `{name}` has no effect here: {why}"));
            }
            Some(Standing::Unsupported(why)) => {
                return Err(SpecError::Unsupported { file, origin, name, why: why.to_owned() });
            }
            None => {
                let nearest = nearest(&name, KNOWN.iter().map(|&(known, _)| known));
                return Err(SpecError::Unknown { file, origin, name, nearest });
            }
        }
    }
    Ok(notes)
}

/// Typed access to properties.
struct Reader<'a> {
    properties: &'a Properties,
}

impl Reader<'_> {
    fn refuse(&self, property: &Property, expected: impl Into<String>) -> SpecError {
        SpecError::Value {
            file: self.properties.file().to_owned(),
            origin: property.origin.clone(),
            name: property.name.clone(),
            expected: expected.into(),
            found: property.value.clone(),
        }
    }

    fn integer(&self, name: &str, default: u64) -> Result<u64, SpecError> {
        let Some(property) = self.properties.get(name) else { return Ok(default) };
        property.value.parse().map_err(|_| self.refuse(property, "a whole number from 0 to 2^64 - 1"))
    }

    fn required_count(&self, name: &'static str) -> Result<u64, SpecError> {
        let Some(property) = self.properties.get(name) else {
            return Err(SpecError::Missing { file: self.properties.file().to_owned(), name });
        };
        match property.value.parse() {
            Ok(count) if (1..=i64::MAX as u64).contains(&count) => Ok(count),
            _ => Err(self.refuse(property, "a whole number from 1 to 2^63 - 1")),
        }
    }

    /// A positive number that fits 31 bits.
    fn small(&self, name: &str, default: u32) -> Result<u32, SpecError> {
        let Some(property) = self.properties.get(name) else { return Ok(default) };
        match property.value.parse() {
            Ok(number) if (1..=i32::MAX as u32).contains(&number) => Ok(number),
            _ => Err(self.refuse(property, "a whole number from 1 to 2^31 - 1")),
        }
    }

    fn float(
        &self,
        name: &str,
        default: f64,
        expected: &str,
        fits: fn(f64) -> bool,
    ) -> Result<f64, SpecError> {
        let Some(property) = self.properties.get(name) else { return Ok(default) };
        match property.value.parse() {
            Ok(number) if fits(number) => Ok(number),
            _ => Err(self.refuse(property, expected)),
        }
    }

    fn share(&self, name: &str, default: f64) -> Result<f64, SpecError> {
        self.float(name, default, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
    }

    fn choice<T: Copy>(&self, name: &str, default: &str, choices: &[(&str, T)]) -> Result<T, SpecError> {
        let property = self.properties.get(name);
        let value = property.map_or(default, |property| property.value.as_str());
        match (choices.iter().find(|(choice, _)| *choice == value), property) {
            (Some(&(_, choice)), _) => Ok(choice),
            (None, Some(property)) => {
                let names: Vec<_> = choices.iter().map(|(choice, _)| format!("`{choice}`")).collect();
                Err(self.refuse(property, names.join(" or ")))
            }
            (None, None) => unreachable!("the default `{default}` of `{name}` is one of its choices"),
        }
    }

    fn workload_class(&self) -> Result<(), SpecError> {
        match self.properties.get("workload") {
            Some(property) if property.value.rsplit('.').next() != Some("CoreWorkload") => {
                Err(self
                    .refuse(property, "`site.ycsb.workloads.CoreWorkload`, the only class supported here"))
            }
            _ => Ok(()),
        }
    }

    fn distribution(&self) -> Result<RequestDistribution, SpecError> {
        let theta = self.float(
            "zipfianconstant",
            DEFAULT_THETA,
            "a finite number above 0 (no skew at all is requestdistribution=uniform)",
            |x| x.is_finite() && x > 0.0,
        )?;
        let data = self.share("hotspotdatafraction", 0.2)?;
        let operations = self.share("hotspotopnfraction", 0.8)?;
        let percentile =
            self.float("exponential.percentile", 95.0, "a number above 0 and below 100", |x| {
                x > 0.0 && x < 100.0
            })?;
        let fraction = self.float("exponential.frac", 0.857_142_857_1, "a finite number above 0", |x| {
            x.is_finite() && x > 0.0
        })?;
        let distribution = self.choice(
            "requestdistribution",
            "uniform",
            &[
                ("uniform", RequestDistribution::Uniform),
                ("zipfian", RequestDistribution::Zipfian { theta }),
                ("zipfian-ranked", RequestDistribution::RankedZipfian { theta }),
                ("latest", RequestDistribution::Latest { theta }),
                ("hotspot", RequestDistribution::Hotspot { data, operations }),
                ("sequential", RequestDistribution::Sequential),
                ("exponential", RequestDistribution::Exponential { percentile, fraction }),
            ],
        )?;
        let skewed = matches!(
            distribution,
            RequestDistribution::Zipfian { .. }
                | RequestDistribution::RankedZipfian { .. }
                | RequestDistribution::Latest { .. }
        );
        if let Some(property) = self.properties.get("zipfianconstant").filter(|_| !skewed) {
            return Err(self.refuse(
                property,
                "left out, since this requestdistribution has no skew (zipfian, zipfian-ranked and latest have)",
            ));
        }
        Ok(distribution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: &str = "recordcount=10\noperationcount=20\n";

    fn error(text: &str) -> String {
        WorkloadSpec::parse("w", text).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_those_of_ycsb() {
        let spec = WorkloadSpec::parse("w", COUNTS).unwrap();
        assert_eq!((spec.record_count, spec.operation_count), (10, 20));
        assert_eq!((spec.insert_start, spec.insert_count), (0, 10));
        assert_eq!(spec.proportions.as_array(), [0.95, 0.05, 0.0, 0.0, 0.0]);
        assert_eq!(spec.distribution, RequestDistribution::Uniform);
        assert_eq!((spec.min_scan_length, spec.max_scan_length), (1, 1000));
        assert_eq!(spec.value_length(), 1000);
        assert_eq!(spec.insert_order, InsertOrder::Hashed);
        assert_eq!(spec.notes, [""; 0]);
    }

    #[test]
    fn every_distribution_is_named() {
        for name in ["uniform", "zipfian", "zipfian-ranked", "latest", "hotspot", "sequential", "exponential"]
        {
            WorkloadSpec::parse("w", &format!("{COUNTS}requestdistribution={name}")).unwrap();
        }
        let spec =
            WorkloadSpec::parse("w", &format!("{COUNTS}requestdistribution=zipfian\nzipfianconstant=1.2"));
        assert_eq!(spec.unwrap().distribution, RequestDistribution::Zipfian { theta: 1.2 });
    }

    #[test]
    fn unknown_names_are_refused_with_line_and_nearest() {
        assert_eq!(
            error("recordcount=10\n\nopperationcount=20"),
            "w, line 3: unknown property `opperationcount`; did you mean `operationcount`?"
        );
        assert!(error("qqqqqqq=1").ends_with("no known name is near it"));
    }

    #[test]
    fn unsupported_names_say_why() {
        let text = error(&format!("{COUNTS}threadcount=8"));
        assert!(
            text.contains("line 3") && text.contains("`threadcount`") && text.contains("depth"),
            "{text}"
        );
    }

    #[test]
    fn harmless_names_are_noted() {
        let spec = WorkloadSpec::parse("w", &format!("{COUNTS}table=t\nwriteallfields=true")).unwrap();
        assert_eq!(spec.notes.len(), 2);
        assert!(spec.notes[0].contains("line 3") && spec.notes[0].contains("`table`"));
    }

    #[test]
    fn values_are_checked() {
        for (line, expected) in [
            ("recordcount=0", "from 1"),
            ("recordcount=ten", "found `ten`"),
            ("readproportion=1.5", "from 0 to 1"),
            ("readproportion=NaN", "from 0 to 1"),
            ("maxscanlength=0", "from 1"),
            ("insertorder=random", "`hashed` or `ordered`"),
            ("requestdistribution=zipf", "`zipfian`"),
            ("requestdistribution=zipfian\nzipfianconstant=0", "above 0"),
            ("requestdistribution=uniform\nzipfianconstant=0.9", "left out"),
            ("exponential.percentile=100", "below 100"),
            ("workload=com.example.MyWorkload", "CoreWorkload"),
            ("fieldlengthdistribution=zipfian", "`constant`"),
            ("readallfields=false", "`true`"),
        ] {
            let text = if line.starts_with("recordcount") {
                error(&format!("operationcount=1\n{line}"))
            } else {
                error(&format!("{COUNTS}{line}"))
            };
            assert!(text.contains(expected) && text.starts_with("w, line "), "{line}: {text}");
        }
    }

    #[test]
    fn missing_and_contradicting_properties() {
        assert!(error("recordcount=1").contains("`operationcount` is missing"));
        assert!(error(&format!("{COUNTS}insertstart=10")).contains("insertstart (10)"));
        assert!(error(&format!("{COUNTS}insertcount=11")).contains("recordcount (10)"));
        assert!(error(&format!("{COUNTS}minscanlength=5\nmaxscanlength=4")).contains("minscanlength (5)"));
        assert!(error(&format!("{COUNTS}readproportion=0\nupdateproportion=0")).contains("are 0"));
    }

    #[test]
    fn proportions_that_do_not_sum_to_one_are_noted() {
        let spec = WorkloadSpec::parse("w", &format!("{COUNTS}readproportion=1")).unwrap();
        assert!(spec.notes[0].contains("sum to 1.05"), "{:?}", spec.notes);
    }

    #[test]
    fn settings_from_outside_are_named_as_such() {
        let mut properties = Properties::parse("w", COUNTS).unwrap();
        properties.set("recordcount", "-5");
        let text = WorkloadSpec::from_properties(&properties).unwrap_err().to_string();
        assert!(text.starts_with("w, set outside the file: `recordcount`"), "{text}");
    }
}
