//! `io_uring` where there is none: opening a ring is an error, and there is no other way to get one.

use std::convert::Infallible;
use std::io;

use super::{Completion, Files, Flash, FlashCounters, ReadRequest};

/// A ring that cannot exist.
#[derive(Debug)]
pub struct Uring(Infallible);

impl Uring {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn new(_: impl Into<Files>, _direct: bool, _depth: usize, _requests: usize) -> io::Result<Self> {
        let why = format!(
            "io_uring does not exist on {}; plan on this machine, which reads by `pread`",
            platform::NAME
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
}

impl Flash for Uring {
    fn describe(&self) -> String {
        match self.0 {}
    }

    fn submit(&mut self, _: &mut Vec<ReadRequest>) {
        match self.0 {}
    }

    fn reap(&mut self, _wait: bool) -> Option<Completion> {
        match self.0 {}
    }

    fn in_flight(&self) -> usize {
        match self.0 {}
    }

    fn counters(&self) -> FlashCounters {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use kernels::Format;
    use plans::Backend;

    use crate::model::gguf::Gguf;
    use crate::model::source::SourceModel;
    use crate::stop::StopHandle;
    use crate::transformer::Transformer;
    use crate::transformer::tests::{Knobs, container, model, plan};

    #[test]
    fn a_plan_that_reads_by_io_uring_is_refused_by_name() {
        let bytes = model(1, Format::F32);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let plan = plan(&container, "dense", &Knobs { backend: Backend::IoUring, ..Knobs::default() });
        let refused = Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
        let begin = format!("io_uring is refused here: io_uring does not exist on {}", platform::NAME);
        assert!(refused.starts_with(&begin), "{refused}");
    }
}
