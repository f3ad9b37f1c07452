//! Layout of headers and their fields, and the slots given to the fields that the program uses.

use std::collections::BTreeMap;

use crate::code::{CopyCode, FieldAt, HeaderCode, SLOTS, Slot};
use crate::error::LoadError;
use crate::json::Document;

use super::{malformed, unknown, unsupported};

/// Maximum number of headers that packets carry: their flags are one word.
const MAX_HEADERS: usize = 64;

/// Maximum number of bits of a header: those of the longest frame.
const MAX_BITS: u32 = 8 * crate::MAX_FRAME as u32;

#[derive(Debug, Clone)]
pub(crate) struct Field {
    name: String,
    pub(crate) width: u16,
    pub(crate) signed: bool,
    bit: u32,
    /// Slot, given out at the first use; a field without one travels with its header's bytes.
    slot: Option<Slot>,
    written: bool,
}

#[derive(Debug)]
struct Instance {
    fields: Vec<Field>,
    bits: u32,
    /// Position among the headers that packets carry; `None` for metadata.
    wire: Option<u16>,
    valid: Option<Slot>,
}

/// A field of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldRef {
    instance: usize,
    field: usize,
}

/// A readable location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) slot: Slot,
    pub(crate) width: u16,
    pub(crate) signed: bool,
}

#[derive(Debug)]
pub(crate) struct Layout {
    instances: Vec<Instance>,
    by_name: BTreeMap<String, usize>,
    /// Instance of each header that packets carry.
    wire: Vec<usize>,
    copies: Vec<(u16, u16)>,
    /// Next slot of state, which grows upwards from 0; everything else grows downwards.
    next_state: Slot,
    next_fixed: Slot,
    constants: BTreeMap<u64, Slot>,
    temporaries: Vec<Slot>,
    used_temporaries: usize,
}

impl Layout {
    pub(crate) fn new(document: &Document) -> Result<Self, LoadError> {
        let mut layout = Layout {
            instances: Vec::new(),
            by_name: BTreeMap::new(),
            wire: Vec::new(),
            copies: Vec::new(),
            next_state: 0,
            next_fixed: Slot::MAX,
            constants: BTreeMap::new(),
            temporaries: Vec::new(),
            used_temporaries: 0,
        };
        for header in &document.headers {
            let place = format!("header `{}`", header.name);
            let kind = document
                .header_types
                .iter()
                .find(|t| t.name == header.header_type)
                .ok_or_else(|| unknown(&place, "header type", &header.header_type))?;
            let (fields, bits) = fields_of(kind)?;
            let wire = if header.metadata {
                None
            } else {
                if bits % 8 != 0 {
                    return Err(malformed(&place, "a whole number of bytes", &format!("{bits} bits")));
                }
                layout.wire.push(layout.instances.len());
                Some((layout.wire.len() - 1) as u16)
            };
            layout.by_name.insert(header.name.clone(), layout.instances.len());
            layout.instances.push(Instance { fields, bits, wire, valid: None });
        }
        if layout.wire.len() > MAX_HEADERS {
            let need = layout.wire.len();
            return Err(LoadError::TooLarge {
                place: "program".into(),
                what: "headers",
                need,
                limit: MAX_HEADERS,
            });
        }
        for at in 0..layout.wire.len() {
            let slot = layout.state()?;
            layout.instances[layout.wire[at]].valid = Some(slot);
        }
        Ok(layout)
    }

    fn state(&mut self) -> Result<Slot, LoadError> {
        self.room()?;
        self.next_state += 1;
        Ok(self.next_state - 1)
    }

    fn fixed(&mut self) -> Result<Slot, LoadError> {
        self.room()?;
        self.next_fixed -= 1;
        Ok(self.next_fixed + 1)
    }

    fn room(&self) -> Result<(), LoadError> {
        if self.next_state < self.next_fixed {
            return Ok(());
        }
        let place = "fields, parameters and constants".to_owned();
        Err(LoadError::TooLarge { place, what: "slots", need: SLOTS + 1, limit: SLOTS })
    }

    /// The slot that always holds `value`.
    pub(crate) fn constant(&mut self, value: u64) -> Result<Slot, LoadError> {
        if let Some(&slot) = self.constants.get(&value) {
            return Ok(slot);
        }
        let slot = self.fixed()?;
        self.constants.insert(value, slot);
        Ok(slot)
    }

    /// Consecutive slots for an action's parameters.
    pub(crate) fn parameters(&mut self, count: usize) -> Result<Slot, LoadError> {
        let mut base = 0;
        for _ in 0..count {
            base = self.fixed()?;
        }
        Ok(base)
    }

    /// A slot for an intermediate value, until [`release`](Layout::release).
    pub(crate) fn temporary(&mut self) -> Result<Slot, LoadError> {
        if self.used_temporaries == self.temporaries.len() {
            let slot = self.fixed()?;
            self.temporaries.push(slot);
        }
        self.used_temporaries += 1;
        Ok(self.temporaries[self.used_temporaries - 1])
    }

    /// Releases the intermediate values of a statement that has ended.
    pub(crate) fn release(&mut self) {
        self.used_temporaries = 0;
    }

    pub(crate) fn is_temporary(&self, slot: Slot) -> bool {
        self.temporaries[..self.used_temporaries].contains(&slot)
    }

    fn find(&self, header: &str, field: &str, place: &str) -> Result<FieldRef, LoadError> {
        let &instance = self.by_name.get(header).ok_or_else(|| unknown(place, "header", header))?;
        let fields = &self.instances[instance].fields;
        if let Some(field) = fields.iter().position(|f| f.name == field) {
            return Ok(FieldRef { instance, field });
        }
        let first = part_name(field, 0);
        Err(if fields.iter().any(|f| f.name == first) {
            let what = format!(
                "field `{header}.{field}` of more than 64 bits used for more than copying and hashing"
            );
            unsupported(place, &what)
        } else {
            unknown(place, "field", &format!("{header}.{field}"))
        })
    }

    /// The parts of a field wider than 64 bits, the upper bits first; the field itself if it is not.
    pub(crate) fn parts(&self, header: &str, field: &str) -> Vec<String> {
        let Some(&at) = self.by_name.get(header) else {
            return vec![field.to_owned()];
        };
        let fields = &self.instances[at].fields;
        let parts: Vec<String> = (0..)
            .map(|part| part_name(field, part))
            .take_while(|p| fields.iter().any(|f| f.name == *p))
            .collect();
        if parts.is_empty() { vec![field.to_owned()] } else { parts }
    }

    fn slot(&mut self, at: FieldRef) -> Result<Slot, LoadError> {
        if let Some(slot) = self.instances[at.instance].fields[at.field].slot {
            return Ok(slot);
        }
        let slot = self.state()?;
        self.instances[at.instance].fields[at.field].slot = Some(slot);
        Ok(slot)
    }

    /// A field to read; `$valid$` is a header's validity.
    pub(crate) fn read(&mut self, header: &str, field: &str, place: &str) -> Result<Location, LoadError> {
        if field == "$valid$" {
            return Ok(Location { slot: self.valid(header, place)?, width: 1, signed: false });
        }
        let at = self.find(header, field, place)?;
        let slot = self.slot(at)?;
        let field = &self.instances[at.instance].fields[at.field];
        Ok(Location { slot, width: field.width, signed: field.signed })
    }

    /// A field to write, and the flag of the header that it changes (0 for metadata).
    pub(crate) fn write(
        &mut self,
        header: &str,
        field: &str,
        place: &str,
    ) -> Result<(Location, u64), LoadError> {
        if field == "$valid$" {
            return Err(unsupported(place, "an assignment to a header's validity"));
        }
        let at = self.find(header, field, place)?;
        let location = self.read(header, field, place)?;
        self.instances[at.instance].fields[at.field].written = true;
        let flag = self.instances[at.instance].wire.map_or(0, |wire| 1 << wire);
        Ok((location, flag))
    }

    /// A field's slot if it exists at all; for standard metadata that a program may lack.
    pub(crate) fn optional(&mut self, header: &str, field: &str) -> Result<Option<Slot>, LoadError> {
        match self.find(header, field, "") {
            Ok(at) => self.slot(at).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// A field's slot if something uses it.
    pub(crate) fn if_used(&self, header: &str, field: &str) -> Option<Slot> {
        let at = self.find(header, field, "").ok()?;
        self.instances[at.instance].fields[at.field].slot
    }

    pub(crate) fn valid(&self, header: &str, place: &str) -> Result<Slot, LoadError> {
        let &at = self.by_name.get(header).ok_or_else(|| unknown(place, "header", header))?;
        let not_carried = || unsupported(place, &format!("the validity of metadata `{header}`"));
        self.instances[at].valid.ok_or_else(not_carried)
    }

    /// A header that packets carry, by position.
    pub(crate) fn header(&self, header: &str, place: &str) -> Result<u16, LoadError> {
        let &at = self.by_name.get(header).ok_or_else(|| unknown(place, "header", header))?;
        self.instances[at]
            .wire
            .ok_or_else(|| unsupported(place, &format!("metadata `{header}` used as a header")))
    }

    /// The names of a header's fields in order.
    pub(crate) fn field_names(&self, header: &str, place: &str) -> Result<Vec<String>, LoadError> {
        let &at = self.by_name.get(header).ok_or_else(|| unknown(place, "header", header))?;
        Ok(self.instances[at].fields.iter().map(|f| f.name.clone()).collect())
    }

    /// Whether this instance is metadata (which is not carried by packets).
    pub(crate) fn is_metadata(&self, header: &str) -> bool {
        self.by_name.get(header).is_some_and(|&at| self.instances[at].wire.is_none())
    }

    /// Notes the assignment of a whole header; returns its number.
    pub(crate) fn copy(&mut self, dst: u16, src: u16) -> u16 {
        self.copies.push((dst, src));
        (self.copies.len() - 1) as u16
    }

    /// Finishes the layout when everything is lowered, so that the fields to load and store are known.
    ///
    /// Both sides of a header assignment need the same fields in slots, and what may be written in the source
    /// may differ from the frame in the destination.
    pub(crate) fn finish(mut self) -> Result<Finished, LoadError> {
        loop {
            let mut changed = false;
            for at in 0..self.copies.len() {
                let (dst, src) = self.copies[at];
                let (dst, src) = (self.wire[usize::from(dst)], self.wire[usize::from(src)]);
                for field in 0..self.instances[dst].fields.len().min(self.instances[src].fields.len()) {
                    let ours = &self.instances[dst].fields[field];
                    let theirs = &self.instances[src].fields[field];
                    let written = theirs.written && !ours.written;
                    let (lacks_ours, lacks_theirs) = (ours.slot.is_none(), theirs.slot.is_none());
                    if lacks_ours != lacks_theirs {
                        let instance = if lacks_ours { dst } else { src };
                        self.slot(FieldRef { instance, field })?;
                        changed = true;
                    }
                    if written {
                        self.instances[dst].fields[field].written = true;
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut headers = Vec::new();
        for &at in &self.wire {
            let instance = &self.instances[at];
            let place = |f: &Field| f.slot.map(|slot| FieldAt::new(slot, f.bit, f.width));
            headers.push(HeaderCode {
                valid: instance.valid.unwrap_or_default(),
                len: (instance.bits / 8) as usize,
                loads: instance.fields.iter().filter_map(place).collect(),
                stores: instance.fields.iter().filter(|f| f.written).filter_map(place).collect(),
            });
        }
        let mut copies = Vec::new();
        for &(dst, src) in &self.copies {
            let to = &self.instances[self.wire[usize::from(dst)]].fields;
            let from = &self.instances[self.wire[usize::from(src)]].fields;
            let fields = to.iter().zip(from).filter_map(|(t, f)| Some((t.slot?, f.slot?))).collect();
            copies.push(CopyCode { dst, src, fields });
        }
        Ok(Finished {
            headers,
            copies,
            state: usize::from(self.next_state),
            constants: self.constants.into_iter().map(|(value, slot)| (slot, value)).collect(),
        })
    }
}

/// Parts of the layout that the machine needs.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) headers: Vec<HeaderCode>,
    pub(crate) copies: Vec<CopyCode>,
    /// Number of slots to zero for each packet.
    pub(crate) state: usize,
    pub(crate) constants: Vec<(Slot, u64)>,
}

/// Name of a part of a field wider than 64 bits. No P4 name has this character.
fn part_name(field: &str, part: usize) -> String {
    format!("{field}#{part}")
}

fn fields_of(kind: &crate::json::HeaderType) -> Result<(Vec<Field>, u32), LoadError> {
    use serde_json::Value as Json;
    let place = format!("header type `{}`", kind.name);
    let mut fields = Vec::new();
    let mut bit = 0u32;
    for field in &kind.fields {
        let (name, width, signed) = match field.as_slice() {
            [Json::String(name), width] => (name, width, false),
            [Json::String(name), width, Json::Bool(signed)] => (name, width, *signed),
            _ => return Err(malformed(&place, "[name, width, signed]", &format!("{field:?}"))),
        };
        if width == "*" {
            return Err(unsupported(&place, &format!("varbit field `{name}`")));
        }
        let bits = width.as_u64().and_then(|w| u16::try_from(w).ok()).filter(|&w| w > 0);
        let width =
            bits.ok_or_else(|| malformed(&place, "a width of 1 to 65535 bits", &width.to_string()))?;
        if bit > MAX_BITS {
            let (need, limit) = (bit as usize, MAX_BITS as usize);
            return Err(LoadError::TooLarge { place, what: "bits", need, limit });
        }
        let mut push = |name: String, width: u16| {
            fields.push(Field { name, width, signed, bit, slot: None, written: false });
            bit += u32::from(width);
        };
        if width <= 64 {
            push(name.clone(), width);
            continue;
        }
        // A wide field lies in several slots, the upper bits first.
        let mut left = width;
        for part in 0.. {
            if left == 0 {
                break;
            }
            let bits = if left % 64 == 0 { 64 } else { left % 64 };
            push(part_name(name, part), bits);
            left -= bits;
        }
    }
    Ok((fields, bit))
}
