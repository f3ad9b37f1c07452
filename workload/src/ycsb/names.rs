//! Known property names, and the treatment of each.

/// Standing of a known property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Determines the operations that are drawn.
    Used,
    /// Known and without influence on the operations drawn: accepted, and named in the notes.
    NoEffect(&'static str),
    /// Known to YCSB but refused: ignoring it would measure something else than the file says.
    Unsupported(&'static str),
}

use Standing::{NoEffect, Unsupported, Used};

/// Every property of YCSB's core workload and client, and our own additions at the end.
pub(crate) const KNOWN: &[(&str, Standing)] = &[
    ("workload", Used),
    ("recordcount", Used),
    ("operationcount", Used),
    ("insertstart", Used),
    ("insertcount", Used),
    ("readproportion", Used),
    ("updateproportion", Used),
    ("insertproportion", Used),
    ("scanproportion", Used),
    ("readmodifywriteproportion", Used),
    ("requestdistribution", Used),
    ("hotspotdatafraction", Used),
    ("hotspotopnfraction", Used),
    ("exponential.percentile", Used),
    ("exponential.frac", Used),
    ("minscanlength", Used),
    ("maxscanlength", Used),
    ("scanlengthdistribution", Used),
    ("fieldcount", Used),
    ("fieldlength", Used),
    ("fieldlengthdistribution", Used),
    ("insertorder", Used),
    ("readallfields", Used),
    ("readallfieldsbyname", NoEffect("a record is one value without field names")),
    ("writeallfields", NoEffect("an update writes the whole value")),
    ("dataintegrity", NoEffect("every value read is checked anyway")),
    ("table", NoEffect("there is one tree")),
    ("columnfamily", NoEffect("there is one tree")),
    ("fieldnameprefix", NoEffect("a record is one value without field names")),
    ("zeropadding", NoEffect("keys are 64-bit numbers, not text")),
    ("minfieldlength", NoEffect("the field length is constant")),
    ("core_workload_insertion_retry_limit", NoEffect("retries are the client's business")),
    ("core_workload_insertion_retry_interval", NoEffect("retries are the client's business")),
    ("measurementtype", NoEffect("latencies always go to an HDR histogram")),
    ("measurement.interval", NoEffect("latencies always go to an HDR histogram")),
    ("measurement.raw.output_file", NoEffect("latencies always go to an HDR histogram")),
    ("measurement.trackjvm", NoEffect("there is no JVM")),
    ("histogram.buckets", NoEffect("latencies always go to an HDR histogram")),
    ("hdrhistogram.percentiles", NoEffect("the reported percentiles are fixed")),
    ("hdrhistogram.fileoutput", NoEffect("latencies always go to an HDR histogram")),
    ("hdrhistogram.output.path", NoEffect("latencies always go to an HDR histogram")),
    ("timeseries.granularity", NoEffect("latencies always go to an HDR histogram")),
    ("reportlatencyforeacherror", NoEffect("failures are counted by kind")),
    ("latencytrackederrors", NoEffect("failures are counted by kind")),
    ("status.interval", NoEffect("progress is the driver's business")),
    ("exporter", NoEffect("reports are the driver's business")),
    ("exportfile", NoEffect("reports are the driver's business")),
    ("db", NoEffect("there is one tree")),
    (
        "threadcount",
        Unsupported("concurrency is the depth and number of clients; set them where the client is started"),
    ),
    ("target", Unsupported("the rate is said where the client is started: `fatbtree bench --rate`")),
    ("maxexecutiontime", Unsupported("a run ends after `operationcount` operations; remove it")),
    ("warmupexecutiontime", Unsupported("a run is measured from its first operation; remove it")),
    ("fieldlengthhistogram", Unsupported("values have one size; set `fieldcount` and `fieldlength`")),
    ("zipfianconstant", Used),
];

/// Standing of a property, if it is known.
pub(crate) fn standing(name: &str) -> Option<Standing> {
    KNOWN.iter().find(|(known, _)| *known == name).map(|&(_, standing)| standing)
}

/// Known name that is the fewest edits away (of any case), if one is reasonably near.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    names
        .into_iter()
        .map(|known| (edits(&name, known), known))
        .min()
        .filter(|&(edits, known)| edits <= 2.max(known.len() / 3))
        .map(|(_, known)| known)
}

/// Levenshtein's edit distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names() {
        let known = || KNOWN.iter().map(|&(name, _)| name);
        assert_eq!(nearest("recordcnt", known()), Some("recordcount"));
        assert_eq!(nearest("readProportion", known()), Some("readproportion"));
        assert_eq!(nearest("requestdistributions", known()), Some("requestdistribution"));
        assert_eq!(nearest("xyzzy", known()), None);
    }

    #[test]
    fn distances() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("same", "same"), 0);
    }

    #[test]
    fn each_name_stands_once() {
        let mut names: Vec<_> = KNOWN.iter().map(|&(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN.len());
    }
}
