//! The server's end: what it must know of the blocks in its region.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_memserver::grpc::{Describe as _, LoadData};
use fatbtree_memserver::{
    Class, Counts, FolderError, Found, FoundRegion, LaidOut, LayError, Laying, Loaded, Marked, Part,
    PartOptions, Seen, Shape as Classes, SizeClass, Tenant, Writes, find_block, find_slot,
};
use fatbtree_remote_memory::record::{
    MAX_VALUE, RECORD_ALIGN, RECORD_HEAD, RecordHead, is_record, place_bytes,
};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES};
use fatbtree_verbs::Memory;

use super::layout::{Block, CLASSES, Info, LARGE, LARGE_BYTES, RECORDS, SMALL, SMALL_BYTES, Shape};

/// Bytes of the longest place for a record.
const LONGEST_RECORD: u64 = place_bytes(MAX_VALUE) as u64;

/// A part, ready to be served.
pub type LoadedBlocks = Loaded<Blocks>;

/// One server's blocks.
#[derive(Clone, Debug)]
pub struct Blocks {
    server: u16,
    info: Info,
    generation: u64,
    region: Arc<Memory>,
    /// Records that large blocks have been found to name.
    marks: Marked,
    /// Parts of chunks of large blocks that are still to be walked over.
    left: Vec<Range<u64>>,
}

/// Offset of a loaded block.
pub fn place(number: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(number) * LARGE_BYTES
}

/// A part in memory.
pub fn part(options: &PartOptions<Shape>) -> LoadedBlocks {
    fatbtree_memserver::make(options).expect("a small region finds memory")
}

impl Blocks {
    /// Fills a region, over whatever is there.
    pub fn fill(options: &PartOptions<Shape>, region: Arc<Memory>) -> LoadedBlocks {
        let &PartOptions { server, shape, spare_bytes, generation, origin, .. } = options;
        for number in 0..shape.loaded {
            let bytes = loaded(server, generation, number);
            region.write(place(number), &bytes).expect("the region has room for its blocks");
        }
        let info = Info { shape, root: GlobalAddress::new(server, HEADER_BYTES as u64) };
        let header = shape.header(info.root, generation, region.len()).to_bytes();
        region.write(0, &header).expect("the region has room for its header");
        let (marks, left) = (Marked::default(), Vec::new());
        Loaded {
            server,
            spare: shape.chunks()..shape.chunks() + spare_bytes,
            generation,
            origin,
            chunk_classes: None,
            shape: classes(shape),
            tenant: Self { server, info, generation, region: Arc::clone(&region), marks, left },
            region,
        }
    }

    /// Number of loaded blocks with the content of a generation.
    pub fn intact(part: &LoadedBlocks, generation: u64) -> u64 {
        let has_it = |&number: &u32| {
            let mut bytes = [0; LARGE_BYTES as usize];
            part.region.read(place(number), &mut bytes).expect("inside of the region");
            bytes[..] == loaded(part.server, generation, number)
        };
        (0..part.tenant.info.shape.loaded).filter(has_it).count() as u64
    }

    fn is_here(&self, address: GlobalAddress, bytes: u64) -> bool {
        let end = self.region.len().saturating_sub(LARGE_BYTES);
        let offset = address.offset();
        address.server() == self.server
            && (HEADER_BYTES as u64..end).contains(&offset)
            && offset.is_multiple_of(64)
            && offset + bytes <= end
    }

    fn is_free_block(&self, class: SizeClass, at: u64) -> bool {
        let here = GlobalAddress::new(self.server, at);
        Block::at(&self.region, at)
            .is_some_and(|block| block.is_free && (block.address, block.class) == (here, class))
    }

    /// The head of the record at an offset, if one begins there.
    fn record_at(&self, offset: u64) -> Option<RecordHead> {
        let mut head = [0; RECORD_HEAD];
        self.region.read(offset, &mut head).ok().filter(|()| is_record(&head))?;
        Some(RecordHead::parse(&head)).filter(|head| head.length() <= MAX_VALUE)
    }
}

/// A block as it is loaded.
fn loaded(server: u16, generation: u64, number: u32) -> Vec<u8> {
    let address = GlobalAddress::new(server, place(number));
    let block = Block { address, class: LARGE, version: 1, is_free: false };
    let content = crc32fast::hash(&[generation.to_le_bytes(), u64::from(number).to_le_bytes()].concat());
    block.filled(|bytes| {
        bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&content.to_le_bytes()))
    })
}

fn classes(shape: Shape) -> Classes {
    let class = |name, bytes: u64| Class { name, bytes: bytes as u32, ..Class::default() };
    let large = Class { loaded: HEADER_BYTES as u64..shape.chunks(), ..class("large blocks", LARGE_BYTES) };
    let classes = vec![large, class("small blocks", SMALL_BYTES), class("records", 0)];
    Classes { classes, reach: LARGE_BYTES as u32, whole_lines: false }
}

impl Tenant for Blocks {
    type Description = Info;
    type Request = Infallible;

    fn description(&self) -> Info {
        self.info
    }

    fn root(&self) -> GlobalAddress {
        self.info.root
    }

    /// Takes over the root that a client has written into the header.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        let Some((header, shape)) = Shape::of_header(header) else { return Seen::Refused };
        let is_this = (header.generation, header.region_bytes) == (self.generation, self.region.len());
        if shape != self.info.shape || !is_this || !self.is_here(header.root, SMALL_BYTES) {
            return Seen::Refused;
        }
        let former = std::mem::replace(&mut self.info.root, header.root);
        if former == header.root { Seen::Same } else { Seen::Changed }
    }

    fn find(&self, class: SizeClass, within: Range<u64>) -> Found {
        let block = |at| {
            let block = Block::at(&self.region, at)?;
            Some(u64::from(block.version) << 1 | u64::from(block.is_free))
        };
        match class {
            LARGE => find_slot(within, LARGE_BYTES, block),
            SMALL => find_slot(within, SMALL_BYTES, block),
            _ => find_block(&self.region, within, (RECORD_ALIGN, LONGEST_RECORD), |at| {
                let head = self.record_at(at)?;
                Some((at + u64::from(place_bytes(head.length())), head.stamp()))
            }),
        }
    }

    fn is_free(&self, class: SizeClass, block: Range<u64>) -> bool {
        if class != RECORDS {
            return self.is_free_block(class, block.start);
        }
        let record = self.record_at(block.start);
        record.is_some_and(|head| block.start + u64::from(place_bytes(head.length())) == block.end)
    }

    fn swept(&self) -> &[SizeClass] {
        &CLASSES
    }

    fn begin_marks(&mut self, _of: u16, bytes: u64, parts: &dyn Fn(SizeClass) -> Vec<Range<u64>>) {
        self.marks = Marked::none(bytes, RECORD_ALIGN);
        self.left = parts(LARGE);
    }

    /// Marks the records that large blocks name.
    fn mark(&mut self, budget: usize) -> bool {
        for _ in 0..budget {
            let Some(part) = self.left.last_mut() else { return false };
            let (at, mut bytes) = (part.start, [0; LARGE_BYTES as usize]);
            part.start += LARGE_BYTES;
            if part.start >= part.end {
                self.left.pop();
            }
            self.region.read(at, &mut bytes).expect("parts lie in the region");
            if Block::at(&self.region, at).is_some_and(|block| !block.is_free) {
                for record in Block::records(&bytes) {
                    let from = record.address.offset();
                    self.marks.mark(from..from + u64::from(place_bytes(record.length)));
                }
            }
        }
        !self.left.is_empty()
    }

    fn take_marks(&mut self) -> Marked {
        std::mem::take(&mut self.marks)
    }

    fn is_marked(&self, marks: &Marked, class: SizeClass, block: Range<u64>) -> bool {
        match class {
            RECORDS => marks.is_marked(block),
            _ => !self.is_free_block(class, block.start),
        }
    }

    fn is_empty(&self, in_use: &mut dyn Iterator<Item = Range<u64>>) -> bool {
        self.info.shape.loaded == 0 && in_use.next().is_none()
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }
}

impl Counts for Shape {
    const STRUCTURE: &'static str = Info::STRUCTURE;
}

impl Part for Blocks {
    type Shape = Shape;
    type Counts = Shape;
    type MakeError = io::Error;

    fn shape(&self) -> Shape {
        self.info.shape
    }

    fn begin(info: &Info) -> GlobalAddress {
        info.root
    }

    fn make_with<E: From<io::Error>>(
        options: &PartOptions<Shape>,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        let bytes = options.shape.chunks().saturating_add(options.spare_bytes).saturating_add(LARGE_BYTES);
        Ok(Self::fill(options, region(bytes)?.into()))
    }

    fn no_memory(_: u64, why: io::Error) -> io::Error {
        why
    }

    /// Loaded blocks must be whole.
    fn found(server: u16, found: FoundRegion<Shape>, _: u64) -> Result<Loaded<Self>, FolderError> {
        let Some((header, shape)) = Shape::of_header(&found.first_line()?) else {
            return Err(found.damaged("it does not begin with a whole header of blocks"));
        };
        found.check_header(&header, shape.chunks(), &shape)?;
        for number in 0..shape.loaded {
            let mut bytes = [0; LARGE_BYTES as usize];
            found.region.read(place(number), &mut bytes).map_err(|out| found.damaged(out))?;
            if !Block::is_whole(&bytes) {
                return Err(found.damaged(format_args!("block {number} is torn")));
            }
        }
        let (info, region) = (Info { shape, root: header.root }, Arc::clone(&found.region));
        let (marks, left) = (Marked::default(), Vec::new());
        let tenant = Self { server, info, generation: header.generation, region, marks, left };
        Ok(found.into_loaded(server, classes(shape), tenant))
    }

    fn lay(_: &Laying<Shape>, _: &dyn LoadData, _: &mut Writes<'_>) -> Result<LaidOut, LayError> {
        Err(LayError::Refused("blocks are loaded when their region is made".into()))
    }
}
