//! Checks of a container's directory: sections inside the file, tensors inside sections, lists as long as the
//! model says.

use std::path::Path;

use plans::PAGE_BYTES;
use plans::model::LevelKind;

use super::index::{Piece, SLICE_WORDS, Source};
use super::{Container, Directory, RowsEntry, Section, Stored, TABLE_WORDS};
use crate::flash;
use crate::model::config::TensorShape;

impl Container {
    /// Checks that every section is in the file, every tensor in its section, every list as long as the model
    /// says.
    pub(crate) fn check(&self) -> Result<(), String> {
        let d = &self.directory;
        d.config.check().map_err(|error| error.to_string())?;
        let section = |what: &str, s: &Section| {
            let inside = s.offset.checked_add(s.bytes).is_some_and(|end| end <= self.bytes);
            if inside && s.offset.is_multiple_of(PAGE_BYTES) && s.bytes.is_multiple_of(PAGE_BYTES) {
                Ok(())
            } else {
                Err(format!(
                    "the {what} at {} of {} bytes does not lie on pages of the file",
                    s.offset, s.bytes
                ))
            }
        };
        section("neuron tables", &d.tables)?;
        if d.source.is_none() {
            section("fixed part", &d.fixed)?;
        }
        for tensor in &d.tensors {
            let end = tensor.bytes().and_then(|bytes| tensor.offset.checked_add(bytes));
            if end.is_none_or(|end| end > d.fixed.bytes) || !tensor.offset.is_multiple_of(super::TENSOR_ALIGN)
            {
                return Err(format!("the tensor {} lies outside the fixed part", tensor.name));
            }
        }
        self.check_shapes()?;
        self.check_per_layer_rows(&section)?;
        let (layers, experts, neurons) = (d.config.layers(), d.config.experts(), self.neurons() as u64);
        let slice = d.bundle.slice_neurons;
        if slice == 0 || !(d.config.ffn_width() as u64).is_multiple_of(slice) {
            return Err(format!("its experts are not cut into slices of {slice} neurons"));
        }
        let words = if d.source.is_some() { experts * SLICE_WORDS } else { neurons as usize * TABLE_WORDS };
        if d.tables.bytes < (layers * words * size_of::<u32>()) as u64 {
            return Err("the neuron tables are too short".to_owned());
        }
        if d.layer_offsets.len() != layers || !(d.layers.is_empty() || d.layers.len() == layers) {
            return Err(format!("it has {} layers of {layers}", d.layer_offsets.len().min(d.layers.len())));
        }
        if !d.down_transposed && d.levels.iter().any(|level| level.kind != LevelKind::Dense) {
            return Err("its levels read single neurons, and their down rows are not there".to_owned());
        }
        let mut before = 0;
        for (layer, &offset) in d.layer_offsets.iter().enumerate() {
            let stored = d.stored(layer);
            check_stored(d, &stored)?;
            let end = offset.checked_add(stored.bundle.layer_bytes(neurons));
            let inside = offset.is_multiple_of(PAGE_BYTES) && end.is_some_and(|end| end <= self.bytes);
            if d.source.is_none() && !(inside && offset >= before) {
                return Err(format!("the layer at {offset} does not fit the file"));
            }
            before = end.unwrap_or(u64::MAX);
        }
        if let Some(source) = &d.source {
            self.check_source(source)?;
        }
        for set in &d.sets {
            section("predictor set", &set.section)?;
            let square = |lens: Vec<usize>| lens.len() == layers && lens.iter().all(|&len| len == experts);
            if !square(set.ranks.iter().map(Vec::len).collect())
                || !square(set.offsets.iter().map(Vec::len).collect())
            {
                return Err(format!("the predictor set {} does not cover the layers", set.name));
            }
            for (layer, expert) in
                (0..layers).flat_map(|layer| (0..experts).map(move |expert| (layer, expert)))
            {
                let end = set
                    .expert_bytes(&d.config, layer, expert)
                    .and_then(|b| b.checked_add(set.offsets[layer][expert]));
                let aligned = set.offsets[layer][expert].is_multiple_of(super::TENSOR_ALIGN);
                if !aligned || end.is_none_or(|end| end > set.section.bytes) {
                    return Err(format!("the predictor set {} does not fit its section", set.name));
                }
            }
        }
        for level in &d.levels {
            if level.always_on.len() != layers || level.always_on.iter().any(|&n| u64::from(n) > neurons) {
                return Err(format!("the level {} names impossible always-on neurons", level.name));
            }
            let predicting = matches!(level.kind, LevelKind::Sign | LevelKind::LowRank);
            let has_thresholds = predicting || level.kind == LevelKind::GateThreshold;
            let set = level.set.map(|set| d.sets.get(set).is_some_and(|set| set.kind == level.kind));
            let enough = level.thresholds.as_ref().map(|s| s.bytes >= layers as u64 * neurons * 4);
            if set != predicting.then_some(true) || enough != has_thresholds.then_some(true) {
                return Err(format!("the level {} has no predictor of its kind", level.name));
            }
            if let Some(thresholds) = &level.thresholds {
                section("thresholds", thresholds)?;
            }
        }
        Ok(())
    }

    /// Checks the per-layer embedding's shape and place, and that each row has a checksum.
    fn check_per_layer_rows(
        &self,
        section: &dyn Fn(&str, &Section) -> Result<(), String>,
    ) -> Result<(), String> {
        let d = &self.directory;
        let expected = d.config.row_table();
        let Some(RowsEntry { table, checksums }) = &d.per_layer_rows else {
            return if expected.is_none() { Ok(()) } else { Err("its table of rows is missing".to_owned()) };
        };
        if Some((table.rows, table.columns)) != expected.map(|(rows, columns, _)| (rows, columns)) {
            return Err(format!("its table of rows is {} x {}", table.rows, table.columns));
        }
        section("checksums of the per-layer embedding", checksums)?;
        let in_file = |bytes: u64| match &d.source {
            None => table.offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            Some(source) => source.span(table.offset, bytes).is_some(),
        };
        if !table.bytes().is_some_and(in_file) || checksums.bytes < 4 * table.rows as u64 {
            return Err("its per-layer embedding is not where it says".to_owned());
        }
        Ok(())
    }

    /// Checks all that an index says of its model's files.
    fn check_source(&self, source: &Source) -> Result<(), String> {
        let (d, name) = (&self.directory, |name: &str| Path::new(name).file_name() == Some(name.as_ref()));
        if source.files.is_empty() || !source.files.iter().all(|file| name(&file.name)) {
            return Err("it names no files, or some in other folders".to_owned());
        }
        let total = source.files.iter().try_fold(0_u64, |total, file| total.checked_add(file.bytes));
        if total.is_none() || source.files.iter().any(|file| file.bytes >= flash::FILE_BYTES_MAX) {
            return Err("it names files of impossible lengths".to_owned());
        }
        // addresses beyond these files belong to groups
        if source.files.len() as u64 >= flash::APART / flash::FILE_BYTES_MAX {
            return Err(format!("it names {} files", source.files.len()));
        }
        // the index's own tensors have addresses before those of the files
        let own = d.fixed.offset <= self.bytes;
        let small = d.fixed.offset.is_multiple_of(PAGE_BYTES) && d.fixed.bytes.is_multiple_of(PAGE_BYTES);
        let pieces = source.pieces(&d.tensors, d.fixed.offset, d.fixed.bytes);
        let pieces = pieces.filter(|pieces| {
            let fits = |piece: &Piece| match piece {
                Piece::Zeros(bytes) => *bytes < PAGE_BYTES,
                Piece::Bytes(span) => {
                    let end = span.offset.checked_add(span.bytes);
                    let pages = end.and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
                    span.offset >= flash::FILE_BYTES_MAX || pages.is_some_and(|end| end <= self.bytes)
                }
            };
            own && small && pieces.iter().all(fits)
        });
        if pieces.is_none() {
            return Err("its fixed part is not where it says".to_owned());
        }
        let whole = d.bundle.slice_neurons == d.config.ffn_width() as u64 && !d.down_transposed;
        let experts = |slices: &Vec<_>| slices.len() == d.config.experts();
        if !whole
            || source.slices.len() != d.config.layers()
            || !source.slices.iter().all(experts)
            || !(0..d.config.layers()).all(|layer| source.slices(layer, self.parts_bytes(layer)).is_some())
        {
            return Err("its experts are not where it says".to_owned());
        }
        Ok(())
    }

    /// Checks the shape of every tensor that a token uses.
    fn check_shapes(&self) -> Result<(), String> {
        let c = &self.directory.config;
        let expect = |name: String, is_plain: bool, rows: usize, columns: usize| match self.tensor(&name) {
            Some(t) if is_plain && t.format != kernels::Format::F32 => {
                Err(format!("the tensor {name} is {}, not F32", t.format))
            }
            Some(t) if (t.rows, t.columns) == (rows, columns) => Ok(()),
            Some(t) => {
                Err(format!("the tensor {name} is {} x {}, not {rows} x {columns}", t.rows, t.columns))
            }
            None => Err(format!("the tensor {name} is missing")),
        };
        expect("token_embd.weight".to_owned(), false, c.vocabulary, c.width)?;
        expect("output_norm.weight".to_owned(), true, 1, c.output_norm_values())?;
        if self.tensor("output.weight").is_some() {
            expect("output.weight".to_owned(), false, c.vocabulary, c.width)?;
        }
        for block in 0..c.blocks.len() {
            for TensorShape { role, rows, columns } in c.parts(block) {
                expect(format!("blk.{block}.{}", role.name()), role.is_plain(), rows, columns)?;
            }
        }
        Ok(())
    }
}

/// Checks that rows and pieces are whole blocks, and the bundle's shape.
fn check_stored(d: &Directory, stored: &Stored) -> Result<(), String> {
    let Stored { gate_format, up_format, down_format, .. } = *stored;
    let slice = d.bundle.slice_neurons as usize;
    let formats = [gate_format, up_format, down_format];
    let apart = |stored: Stored| if d.source.is_some() { stored.apart() } else { stored };
    match Stored::new(formats, &d.config, slice, d.down_transposed).map(apart) {
        None => Err("its rows and pieces of rows are not whole blocks".to_owned()),
        Some(expected) if expected != *stored => {
            Err("its bundles have another shape than the model's rows".to_owned())
        }
        Some(_) => Ok(()),
    }
}
