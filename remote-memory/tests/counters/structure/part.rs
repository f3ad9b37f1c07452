//! The server: what it must know of the array in its region.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_memserver::grpc::{Describe, LoadData, MessageError};
use fatbtree_memserver::{
    Class, Counts, FolderError, Found, FoundRegion, LaidOut, LayError, Laying, Loaded, Part, PartOptions,
    Seen, Shape as Classes, Tenant, Writes,
};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, SizeClass};
use fatbtree_verbs::Memory;

use super::layout::{ARRAY, CHUNKS, Shape, header_of};

/// One server's part: its array, if a client has made it.
#[derive(Debug)]
pub(crate) struct Array {
    shape: Shape,
    base: Option<GlobalAddress>,
}

impl Array {
    /// The array that a header names.
    fn of_header(line: &[u8]) -> Option<Self> {
        let (header, shape) = header_of(line)?;
        Some(Self { shape, base: Some(header.root).filter(|root| *root != GlobalAddress::NULL) })
    }

    /// Offsets of the array.
    fn range(&self) -> Option<Range<u64>> {
        let base = self.base?.offset();
        Some(base..base + u64::from(self.shape.array_bytes()))
    }
}

fn classes() -> Vec<Class> {
    vec![Class { name: "counters", ..Class::default() }]
}

impl Tenant for Array {
    type Description = Shape;
    type Request = Infallible;

    fn description(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> GlobalAddress {
        self.base.unwrap_or(GlobalAddress::NULL)
    }

    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        match Self::of_header(header) {
            Some(found) if found.base == self.base => Seen::Same,
            // There is one array for ever.
            Some(found) if self.base.is_none() => {
                self.base = found.base;
                Seen::Changed
            }
            _ => Seen::Refused,
        }
    }

    fn find(&self, _class: SizeClass, within: Range<u64>) -> Found {
        match self.range() {
            Some(array) if array.contains(&within.start) => {
                Found::Block { end: array.end.min(within.end), stamp: 0 }
            }
            Some(array) if within.contains(&array.start) => Found::Nothing(array.start),
            _ => Found::Nothing(within.end),
        }
    }

    fn is_empty(&self, _: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        self.base.is_none()
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }
}

impl Part for Array {
    type Shape = Shape;
    type Counts = Shape;
    type MakeError = io::Error;

    fn shape(&self) -> Shape {
        self.shape
    }

    fn begin(shape: &Shape) -> GlobalAddress {
        GlobalAddress::new(shape.home(), CHUNKS)
    }

    fn make_with<E: From<io::Error>>(
        options: &PartOptions<Shape>,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        let &PartOptions { server, shape, spare_bytes, generation, origin, .. } = options;
        if !shape.numbers().any(|number| number == server) {
            return Err(io::Error::other(format!("memory server {server} has no part of {shape}")).into());
        }
        let bytes = CHUNKS.saturating_add(spare_bytes);
        let region: Arc<Memory> = region(bytes)?.into();
        let header = shape.header(GlobalAddress::NULL, generation, bytes).to_bytes();
        region.write(0, &header).expect("the region has room for its header");
        Ok(Loaded {
            server,
            region,
            spare: CHUNKS..bytes,
            generation,
            origin,
            chunk_classes: None,
            shape: Classes { classes: classes(), ..Classes::default() },
            tenant: Self { shape, base: None },
        })
    }

    fn no_memory(_: u64, why: io::Error) -> io::Error {
        why
    }

    fn found(server: u16, found: FoundRegion<Shape>, _: u64) -> Result<Loaded<Self>, FolderError> {
        let line = found.first_line()?;
        let (Some((header, shape)), Some(tenant)) = (header_of(&line), Self::of_header(&line)) else {
            return Err(found.damaged("it does not begin with the header of counters"));
        };
        found.check_header(&header, CHUNKS, &shape)?;
        let layout = found.layout(classes());
        if tenant.range().is_some_and(|array| !layout.may_lie(ARRAY, array.start, shape.array_bytes().into()))
        {
            return Err(found.damaged("no array can lie where its header says"));
        }
        Ok(found.into_loaded(server, Classes { classes: classes(), ..Classes::default() }, tenant))
    }

    /// A client makes the array, and writes into the header where it is.
    fn lay(_: &Laying<Shape>, _: &dyn LoadData, _: &mut Writes<'_>) -> Result<LaidOut, LayError> {
        Err(LayError::Refused("counters are made by their first client: set them by updates".into()))
    }
}

impl Counts for Shape {
    const STRUCTURE: &'static str = <Self as Describe>::STRUCTURE;
}

impl Describe for Shape {
    const STRUCTURE: &'static str = "counters";

    fn encode(&self) -> Vec<u8> {
        self.header(GlobalAddress::NULL, 0, 0).to_bytes().into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let found = header_of(description).map(|(_, shape)| shape);
        found.ok_or_else(|| MessageError::structure("the description is not one of counters"))
    }
}
