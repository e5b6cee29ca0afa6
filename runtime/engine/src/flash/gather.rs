//! Reads that gather separate parts into one buffer: slices whose gate, up and down are apart in a model's
//! file. An empty part is not read.
//!
//! ```text
//! submit [buffer]  -->  [gate's pages] [up's pages] [down's pages]  -->  device
//!                       three requests, in flight together
//! reap   [buffer]  <--  joined when the last one has completed
//! ```
//!
//! Slices have addresses from [`APART`] on, as if buffers full of them followed each other. Other addresses
//! pass unchanged.

use std::io;

use plans::layout::{PARTS, Span};

use super::{APART, Buffer, Completion, FILE_BYTES_MAX, Flash, FlashCounters, ReadRequest};

/// Slices of one layer.
#[derive(Debug, Clone)]
pub struct LayerSlices {
    /// First byte of each part of a slice in its buffer, each on a page, and the end of the last part's
    /// pages.
    pub at: [u64; PARTS + 1],
    /// The spans of each slice's parts, by address.
    pub slices: Box<[[Span; PARTS]]>,
}

impl LayerSlices {
    /// The address of the first slice of group `number`.
    pub fn address(number: usize) -> u64 {
        APART + number as u64 * FILE_BYTES_MAX
    }
}

/// A device that gathers parts, over another device.
pub struct Gather {
    inner: Box<dyn Flash>,
    groups: Vec<LayerSlices>,
    /// Open requests, by number.
    open: Vec<Open>,
    /// Numbers that are not in use.
    free: Vec<u32>,
    /// Parts to be submitted to the inner device.
    batch: Vec<ReadRequest>,
    /// The most parts of a request.
    parts_max: usize,
}

/// An open request, in parts.
#[derive(Debug)]
struct Open {
    tag: u32,
    bytes: usize,
    /// Parts not yet completed.
    left: usize,
    failed: Option<io::Error>,
    /// Completed parts of the buffer, in order.
    parts: Vec<Option<Buffer>>,
}

impl std::fmt::Debug for Gather {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gather").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Gather {
    /// The most parts of a read into a buffer of `buffer_bytes`.
    pub fn parts_max(groups: &[LayerSlices], buffer_bytes: u64) -> usize {
        let slices = groups.iter().map(|group| buffer_bytes / group.at[PARTS].max(1)).max();
        PARTS * slices.unwrap_or(1).max(1) as usize
    }

    /// Gathers `groups` through `inner`, which must have room for `parts_max` parts for each of `requests`
    /// requests.
    pub fn new(inner: Box<dyn Flash>, groups: Vec<LayerSlices>, requests: usize, parts_max: usize) -> Self {
        let open = || Open { tag: 0, bytes: 0, left: 0, failed: None, parts: Vec::with_capacity(parts_max) };
        Self {
            inner,
            groups,
            open: (0..requests).map(|_| open()).collect(),
            free: (0..requests as u32).collect(),
            batch: Vec::with_capacity(requests * parts_max),
            parts_max,
        }
    }

    /// Adds the parts of a request to the batch.
    ///
    /// # Panics
    /// If there are more open requests than room, or a request is not of whole slices.
    fn split(&mut self, request: ReadRequest) {
        let ReadRequest { tag, offset, bytes, mut buffer, at } = request;
        let Some(number) = self.free.pop() else { panic!("a request beyond those that there is room for") };
        let open = &mut self.open[number as usize];
        (open.tag, open.bytes, open.failed) = (tag, bytes, None);
        open.parts.clear();
        let first_tag = number * self.parts_max as u32;
        if offset < APART {
            open.left = 1;
            open.parts.push(None);
            self.batch.push(ReadRequest { tag: first_tag, offset, bytes, buffer, at });
            return;
        }
        let within = offset - APART;
        let group = &self.groups[(within / FILE_BYTES_MAX) as usize];
        let (first, stride) = (within % FILE_BYTES_MAX, group.at[PARTS]);
        assert!(
            at == 0 && first.is_multiple_of(stride) && (bytes as u64).is_multiple_of(stride),
            "reads are of whole slices"
        );
        let slices = &group.slices[(first / stride) as usize..][..bytes / stride as usize];
        open.left = 0;
        // from last to first, so that each cut leaves the bytes before it
        let begin = self.batch.len();
        for (slice, parts) in slices.iter().enumerate().rev() {
            for (part, span) in parts.iter().enumerate().rev() {
                open.parts.push(None);
                if span.bytes == 0 {
                    continue;
                }
                open.left += 1;
                let start = slice as u64 * stride + group.at[part];
                let pages = span.pages();
                self.batch.push(ReadRequest {
                    tag: first_tag + (slice * PARTS + part) as u32,
                    offset: pages.offset,
                    bytes: pages.bytes as usize,
                    buffer: buffer.split_off(start as usize),
                    at: 0,
                });
            }
        }
        self.batch[begin..].reverse();
    }

    /// Takes a completed part; returns the request after its last part.
    fn join(&mut self, done: Completion) -> Option<Completion> {
        let number = done.tag / self.parts_max as u32;
        let open = &mut self.open[number as usize];
        open.parts[done.tag as usize % self.parts_max] = Some(done.buffer);
        if let Err(error) = done.result {
            open.failed.get_or_insert(error);
        }
        open.left -= 1;
        if open.left > 0 {
            return None;
        }
        self.free.push(number);
        let buffer = open.parts.drain(..).flatten().reduce(Buffer::join)?;
        let result = open.failed.take().map_or(Ok(()), Err);
        Some(Completion { tag: open.tag, bytes: open.bytes, buffer, result })
    }
}

impl Flash for Gather {
    fn adopt(&mut self, buffers: &mut [Buffer]) {
        self.inner.adopt(buffers);
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) {
        for request in requests.drain(..) {
            assert!(request.fits(), "a read fits its buffer");
            self.split(request);
        }
        self.inner.submit(&mut self.batch);
    }

    fn go_on(&mut self) {
        self.inner.go_on();
    }

    fn reap(&mut self, wait: bool) -> Option<Completion> {
        loop {
            let done = self.inner.reap(wait)?;
            if let Some(request) = self.join(done) {
                return Some(request);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.open.len() - self.free.len()
    }

    fn counters(&self) -> FlashCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use plans::{Backend, PAGE_BYTES};

    use super::*;
    use crate::flash::faulty::{Fault, Faulty};
    use crate::flash::tests::{PAGE, buffers, file, refused};
    use crate::flash::{Files, open, open_backend};

    /// Parts of 100, 5000 and 1 bytes, at any place in a page.
    fn group() -> LayerSlices {
        let pages = |count: u64| count * PAGE_BYTES;
        let slice = |first: u64| [(first, 100), (pages(20) + 7 * first, 5000), (pages(50) + first, 1)];
        let spans = |first| slice(first).map(|(offset, bytes)| Span { offset, bytes });
        LayerSlices { at: [0, pages(1), pages(3), pages(4)], slices: [50, 1000, 3000].map(spans).into() }
    }

    #[test]
    fn slices_come_together_from_three_places_whatever_the_order() {
        let (group, file) = (group(), file());
        let parts = Gather::parts_max(std::slice::from_ref(&group), 4 * PAGE_BYTES);
        assert_eq!((parts, Gather::parts_max(std::slice::from_ref(&group), 8 * PAGE_BYTES + 1)), (3, 6));
        for (backend, fault) in Backend::ALL.into_iter().flat_map(|backend| {
            [None, Some(Fault::Reordered), Some(Fault::Failing { every: 4 })].map(|fault| (backend, fault))
        }) {
            let files = Files::from(open(file.path(), false).unwrap());
            let inner = match open_backend(backend, files, false, 2, 3 * parts, &[0]) {
                Err(error) if refused(&error) => continue,
                made => made.unwrap(),
            };
            let inner = match fault {
                Some(fault) => Box::new(Faulty::new(inner, fault)),
                None => inner,
            };
            let mut gather = Gather::new(inner, vec![group.clone()], 3, parts);
            let (_arena, mut buffers) = buffers(3);
            gather.adopt(&mut buffers);
            let numbered = |(tag, buffer)| ReadRequest {
                tag,
                offset: APART + u64::from(tag) * 4 * PAGE_BYTES,
                bytes: 4 * PAGE,
                buffer,
                at: 0,
            };
            let mut requests: Vec<ReadRequest> = (0..3).zip(buffers).map(numbered).collect();
            // a request that is no slice passes unchanged
            (requests[2].offset, requests[2].bytes, requests[2].at) = (9 * PAGE_BYTES, PAGE, PAGE);
            gather.submit(&mut requests);
            assert_eq!((gather.in_flight(), requests.len()), (3, 0));
            let mut failed = 0;
            for _ in 0..3 {
                let Completion { tag, bytes, buffer, result } = gather.reap(true).unwrap();
                assert_eq!(buffer.len(), 4 * PAGE, "joined again");
                if result.is_err() {
                    failed += 1;
                    continue;
                }
                if tag == 2 {
                    assert_eq!((bytes, &buffer[PAGE..2 * PAGE]), (PAGE, &[9; PAGE][..]));
                    continue;
                }
                assert_eq!(bytes, 4 * PAGE);
                for (span, at) in group.slices[tag as usize].iter().zip(group.at) {
                    let start = (at + span.offset % PAGE_BYTES) as usize;
                    let found = &buffer[start..][..span.bytes as usize];
                    let expected: Vec<u8> =
                        (span.offset..span.end()).map(|at| (at / PAGE_BYTES) as u8).collect();
                    assert!(found == expected, "{backend:?} {fault:?} {tag} {span:?}");
                }
            }
            let fails = matches!(fault, Some(Fault::Failing { .. }));
            assert_eq!((gather.in_flight(), gather.reap(true).is_none(), failed > 0), (0, true, fails));
            assert_eq!(gather.counters().reads, 7, "three, three and one");
        }
    }
}
