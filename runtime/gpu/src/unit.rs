//! A unit: resident matrices, and their products with vectors.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kernels::{Format, Matrix};

use crate::adapter::Adapter;
use crate::device::{Buffer, Device, TASK_BYTES};
use crate::error::GpuError;
use crate::shader::{self, GRIDS, Kernel, Lanes};
use crate::shape::{PADDING_BYTES, Shape};
use crate::stream::Stream;

/// Bytes of eight values of a vector.
const EIGHT_BYTES: u64 = 32;
/// Workgroups of a dispatch along one axis, which every device allows.
pub(crate) const WORKGROUPS_MAX: usize = 65_535;
/// The smallest buffers for transfers: a tile of outputs, and vectors of two thousand eights.
const TRANSFER_BYTES_MIN: u64 = 64 << 10;

/// Limits of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all its buffers, with the blocks that the driver's allocator takes for them. What a driver
    /// needs for itself, such as compiled shaders, is not counted.
    pub memory_bytes: u64,
    /// Bytes of each of its four buffers for vectors and outputs, on the device and on the way. At least
    /// 64 KiB, at most what a shader can bind; sizes outside are taken as the nearest one. Matrices pass
    /// through two buffers of 4 MiB.
    pub transfer_bytes: u64,
    /// Time that the device has for the commands of one call.
    pub patience: Duration,
}

/// A GPU that is open for one caller.
#[derive(Debug)]
pub struct Unit {
    pub(crate) device: Device,
    limits: Limits,
    binding_bytes: u64,
    lanes: Lanes,
    bindings: wgpu::BindGroupLayout,
    layout: wgpu::PipelineLayout,
    pipelines: HashMap<(Format, Kernel), wgpu::ComputePipeline>,
    stream: Stream,
    /// Vectors on the way up.
    pub(crate) upload: Buffer,
    pub(crate) vectors: Buffer,
    pub(crate) outputs: Buffer,
    /// Outputs on the way down.
    pub(crate) download: Buffer,
    /// The grids of the formats that have one.
    points: Buffer,
    /// Shared with all matrices of this unit.
    identity: Arc<()>,
}

/// A matrix in the memory of a unit, as it lies in the file. Dropping it frees its bytes.
#[derive(Debug)]
pub struct Resident {
    pub(crate) shape: Shape,
    parts: Vec<Part>,
    unit: Arc<()>,
}

/// Some rows of a matrix, in one binding.
#[derive(Debug)]
struct Part {
    /// The first row.
    start: u32,
    buffer: Buffer,
    group: wgpu::BindGroup,
}

/// Departures from what an adapter offers, for tests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choices {
    /// Adds up lanes through memory, in groups of so many.
    pub(crate) lanes: Option<usize>,
    /// Binds no more bytes than this.
    pub(crate) binding_bytes: Option<u64>,
}

impl Resident {
    /// Rows: the length of an output.
    pub fn rows(&self) -> usize {
        self.shape.rows as usize
    }

    /// Columns: the length of a vector.
    pub fn columns(&self) -> usize {
        self.shape.columns as usize
    }

    /// Bytes in the unit's memory.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.buffer.handle.size()).sum()
    }

    /// Bindings that the matrix needs.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }
}

impl Unit {
    /// Opens an adapter, and takes its buffers for transfers.
    ///
    /// # Errors
    /// If the adapter lacks what the kernels need, its driver refuses, or the limit has no space for the
    /// buffers.
    pub fn open(adapter: &Adapter, limits: Limits) -> Result<Self, GpuError> {
        Self::open_with(adapter, limits, Choices::default())
    }

    /// [`Unit::open`] with other choices than the adapter's.
    pub(crate) fn open_with(adapter: &Adapter, limits: Limits, choices: Choices) -> Result<Self, GpuError> {
        // offsets in a binding are numbers of 32 bits
        let most = adapter.binding_bytes.min(adapter.buffer_bytes).min(u64::from(u32::MAX)) / 4 * 4;
        let binding_bytes = choices.binding_bytes.unwrap_or(most);
        let device = Device::open(adapter, binding_bytes, limits.memory_bytes, limits.patience)?;
        let least = adapter.subgroup_lanes[0] as usize;
        let lanes = match choices.lanes {
            Some(lanes) => Lanes::Memory(lanes),
            None if adapter.subgroups && least >= 4 => Lanes::Subgroups(least),
            None => Lanes::Memory(64),
        };
        let transfer_bytes = limits.transfer_bytes.min(binding_bytes).max(TRANSFER_BYTES_MIN) / 4 * 4;
        let limits = Limits { transfer_bytes, ..limits };
        let grids: Vec<u8> = GRIDS.iter().flat_map(|format| kernels::grid(*format)).copied().collect();
        let bindings = bindings_of(&device.handle);
        let layout = device.handle.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: TASK_BYTES,
        });
        use wgpu::BufferUsages as Use;
        let mut unit = Self {
            stream: Stream::new(&device)?,
            upload: device.buffer(transfer_bytes, Use::MAP_WRITE | Use::COPY_SRC)?,
            vectors: device.buffer(transfer_bytes, Use::STORAGE | Use::COPY_DST)?,
            outputs: device.buffer(transfer_bytes, Use::STORAGE | Use::COPY_SRC)?,
            download: device.buffer(transfer_bytes, Use::MAP_READ | Use::COPY_DST)?,
            points: device.buffer(grids.len() as u64, Use::STORAGE | Use::COPY_DST)?,
            device,
            limits,
            binding_bytes,
            lanes,
            bindings,
            layout,
            pipelines: HashMap::new(),
            identity: Arc::new(()),
        };
        unit.stream.send(&unit.device, &grids, &unit.points)?;
        Ok(unit)
    }

    /// Bytes of each buffer for transfers.
    pub fn transfer_bytes(&self) -> u64 {
        self.limits.transfer_bytes
    }

    /// Bytes held of the limit.
    pub fn held_bytes(&self) -> u64 {
        self.device.held_bytes()
    }

    /// The most bytes that were held of the limit.
    pub fn peak_bytes(&self) -> u64 {
        self.device.peak_bytes()
    }

    /// Copies a matrix to the unit's memory. A matrix that exceeds what a shader can bind is cut between rows.
    ///
    /// # Errors
    /// If its sizes contradict each other, a row cannot be bound, no memory is left, or the device fails.
    pub fn load(&mut self, matrix: &Matrix<'_>) -> Result<Resident, GpuError> {
        let shape = Shape::new(matrix, self.binding_bytes)?;
        let row_bytes = shape.row_bytes as usize;
        let parts: Vec<Part> = shape
            .part_starts()
            .map(|start| {
                let bytes = shape.rows_from(start) as usize * row_bytes;
                let padded = (bytes as u64).next_multiple_of(4) + PADDING_BYTES;
                let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
                let buffer = self.device.buffer(padded, usage)?;
                Ok(Part { start, group: self.group_of(&buffer), buffer })
            })
            .collect::<Result<_, GpuError>>()?;
        self.device.check(0)?;
        for part in &parts {
            let start = part.start as usize * row_bytes;
            let bytes = shape.rows_from(part.start) as usize * row_bytes;
            self.stream.send(&self.device, &matrix.bytes[start..][..bytes], &part.buffer)?;
        }
        self.device.wait()?;
        Ok(Resident { shape, parts, unit: self.identity.clone() })
    }

    /// Rows times few vectors, for decoding: `out[t][r] = w[r] . x[t]`. Eight vectors pass a matrix together.
    ///
    /// The order of each sum does not depend on other rows and vectors. It differs from [`Unit::products`].
    ///
    /// *Shapes*: `x: [count, columns]`, `out: [count, rows]`.
    ///
    /// # Errors
    /// If lengths disagree, the matrix belongs to another unit, or the device fails.
    pub fn dots(&mut self, w: &Resident, x: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        let kernel = Kernel::for_few(count_of(w, x, out)?);
        self.multiply(w, kernel, x, out)
    }

    /// Rows times many vectors, for prompts: `out[t][r] = w[r] . x[t]`.
    ///
    /// The order of each sum does not depend on other rows and vectors, nor on their number.
    ///
    /// *Shapes*: `x: [count, columns]`, `out: [count, rows]`.
    ///
    /// # Errors
    /// As [`Unit::dots`].
    pub fn products(&mut self, w: &Resident, x: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        self.multiply(w, Kernel::Many, x, out)
    }

    /// Vectors that the buffers hold together with all their products with so many rows.
    pub(crate) fn together(&self, w: &Resident, rows: usize) -> usize {
        let vector_bytes = (u64::from(w.shape.eights()) * EIGHT_BYTES).max(4 * rows as u64);
        (self.limits.transfer_bytes / vector_bytes) as usize
    }

    /// The definition of [`Unit::dots`] and [`Unit::products`]: one product a thread, column after column. Slow;
    /// a check of a device that nobody has tested.
    ///
    /// *Shapes*: `x: [count, columns]`, `out: [count, rows]`.
    ///
    /// # Errors
    /// As [`Unit::dots`].
    pub fn reference(&mut self, w: &Resident, x: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        self.multiply(w, Kernel::Plain, x, out)
    }

    /// Multiplies by a kernel, as many vectors at a time as it takes and the buffers hold.
    fn multiply(&mut self, w: &Resident, kernel: Kernel, x: &[f32], out: &mut [f32]) -> Result<(), GpuError> {
        count_of(w, x, out)?;
        self.own(w)?;
        let transfer_bytes = self.limits.transfer_bytes;
        let vector_bytes = u64::from(w.shape.eights()) * EIGHT_BYTES;
        let [tile_rows, tile_vectors] = kernel.tile();
        let held = transfer_bytes / vector_bytes;
        if held == 0 {
            return Err(GpuError::VectorTooLong { columns: w.columns(), buffer_bytes: transfer_bytes });
        }
        // of outputs, at least a tile's rows
        let held = held.min(transfer_bytes / (4 * tile_rows as u64)) as usize;
        let count = match kernel {
            Kernel::Few(_) => held.min(tile_vectors),
            Kernel::Plain | Kernel::Many => held.min(WORKGROUPS_MAX * tile_vectors),
        };
        let pipeline = self.pipeline(w.shape.format, kernel)?;
        let (columns, rows) = (w.columns(), w.rows());
        for (x, out) in x.chunks(count * columns).zip(out.chunks_mut(count * rows)) {
            self.pass(w, &pipeline, [tile_rows, tile_vectors], x, out)?;
        }
        Ok(())
    }

    /// Refuses the matrix of another unit.
    pub(crate) fn own(&self, w: &Resident) -> Result<(), GpuError> {
        if Arc::ptr_eq(&w.unit, &self.identity) { Ok(()) } else { Err(GpuError::Foreign) }
    }

    /// Multiplies vectors that the buffers hold together, as many rows at a time as the outputs have space for.
    fn pass(
        &self,
        w: &Resident,
        pipeline: &wgpu::ComputePipeline,
        tile: [usize; 2],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), GpuError> {
        let (count, all_rows) = (x.len() / w.columns(), w.rows());
        let all_bytes = self.stage(w, x)?;
        let window = (self.limits.transfer_bytes as usize / 4 / count).min(WORKGROUPS_MAX * tile[0]);
        for start in (0..all_rows).step_by(window) {
            let rows = start..all_rows.min(start + window);
            let sent = if start == 0 { all_bytes } else { 0 };
            self.submit(w, pipeline, tile, count, rows.clone(), sent)?;
            self.receive(count, rows, out)?;
        }
        Ok(())
    }

    /// Writes vectors to the buffer on the way up, each filled up with zeros. Returns their bytes there.
    pub(crate) fn stage(&self, w: &Resident, x: &[f32]) -> Result<u64, GpuError> {
        let columns = w.columns();
        let vector_bytes = w.shape.eights() as usize * EIGHT_BYTES as usize;
        let all_bytes = (x.len() / columns * vector_bytes) as u64;
        self.device.write(&self.upload, all_bytes, |mut to| {
            for (t, x) in x.chunks_exact(columns).enumerate() {
                let mut to = to.slice(t * vector_bytes..(t + 1) * vector_bytes);
                to.slice(..4 * columns).copy_from_slice(bytemuck::cast_slice(x));
                to.slice(4 * columns..).fill(0);
            }
        })?;
        Ok(all_bytes)
    }

    /// Submits the products of some rows, with the copies of vectors to the device and of outputs to the
    /// host.
    fn submit(
        &self,
        w: &Resident,
        pipeline: &wgpu::ComputePipeline,
        tile: [usize; 2],
        count: usize,
        rows: Range<usize>,
        sent_bytes: u64,
    ) -> Result<(), GpuError> {
        let output_bytes = (4 * count * rows.len()) as u64;
        let mut commands = self.device.commands();
        if sent_bytes > 0 {
            copy(&mut commands, &self.upload, &self.vectors, 0, sent_bytes);
        }
        let place = [rows.len(), 0];
        self.dispatch(&mut commands, w, pipeline, tile, count, rows, place);
        copy(&mut commands, &self.outputs, &self.download, 0, output_bytes);
        self.device.submit(commands).map(drop)
    }

    /// Waits for the products of some rows, and copies them to `out: [count, all rows]`.
    fn receive(&self, count: usize, rows: Range<usize>, out: &mut [f32]) -> Result<(), GpuError> {
        let all_rows = out.len() / count;
        self.device.read(&self.download, (4 * count * rows.len()) as u64, |bytes| {
            for (bytes, out) in bytes.chunks_exact(4 * rows.len()).zip(out.chunks_exact_mut(all_rows)) {
                bytemuck::cast_slice_mut(&mut out[rows.clone()]).copy_from_slice(bytes);
            }
        })
    }

    /// Multiplies some rows with the vectors on the device, part by part. Outputs stay there, from a first column
    /// of `[count, stride]` on.
    pub(crate) fn dispatch(
        &self,
        commands: &mut wgpu::CommandEncoder,
        w: &Resident,
        pipeline: &wgpu::ComputePipeline,
        [tile_rows, tile_vectors]: [usize; 2],
        count: usize,
        rows: Range<usize>,
        [stride, column]: [usize; 2],
    ) {
        let mut pass = commands.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline);
        for part in &w.parts {
            let first = part.start as usize;
            let end = first + w.shape.rows_from(part.start) as usize;
            let (from, to) = (first.max(rows.start), end.min(rows.end));
            if from >= to {
                continue;
            }
            let task = [
                w.columns(),
                w.shape.eights() as usize,
                w.shape.row_bytes as usize,
                from - first,
                to - from,
                count,
                stride,
                column + from - rows.start,
            ];
            // each was checked: a part, a vector and all outputs have less than 2^32 bytes
            let task = task.map(|number| number as u32);
            pass.set_bind_group(0, &part.group, &[]);
            pass.set_immediates(0, bytemuck::cast_slice(&task));
            let workgroups = [(to - from).div_ceil(tile_rows), count.div_ceil(tile_vectors)];
            let [x, y] = workgroups.map(|workgroups| workgroups as u32);
            pass.dispatch_workgroups(x, y, 1);
        }
    }

    /// The compiled kernel of a format, kept for later calls.
    pub(crate) fn pipeline(
        &mut self,
        format: Format,
        kernel: Kernel,
    ) -> Result<wgpu::ComputePipeline, GpuError> {
        if let Some(pipeline) = self.pipelines.get(&(format, kernel)) {
            return Ok(pipeline.clone());
        }
        let text = shader::text(format, kernel, self.lanes);
        let module = self.device.handle.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(format.name()),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let pipeline = self.device.handle.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(format.name()),
            layout: Some(&self.layout),
            module: &module,
            entry_point: Some("products"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        self.device.check(0)?;
        self.pipelines.insert((format, kernel), pipeline.clone());
        Ok(pipeline)
    }

    /// The bindings of a part.
    fn group_of(&self, weights: &Buffer) -> wgpu::BindGroup {
        let buffers = [weights, &self.vectors, &self.outputs, &self.points];
        let entries: Vec<_> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.handle.as_entire_binding(),
            })
            .collect();
        self.device.handle.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.bindings,
            entries: &entries,
        })
    }

    /// Destroys the device, as if its driver had lost it.
    #[cfg(test)]
    pub(crate) fn destroy(&self) {
        self.device.handle.destroy();
    }
}

/// The number of vectors.
fn count_of(w: &Resident, x: &[f32], out: &[f32]) -> Result<usize, GpuError> {
    let (rows, columns, count) = (w.rows(), w.columns(), x.len() / w.columns());
    if x.len() == count * columns && Some(out.len()) == count.checked_mul(rows) {
        return Ok(count);
    }
    Err(GpuError::Vectors { inputs: x.len(), outputs: out.len(), rows, columns })
}

pub(crate) fn copy(commands: &mut wgpu::CommandEncoder, from: &Buffer, to: &Buffer, start: u64, bytes: u64) {
    commands.copy_buffer_to_buffer(&from.handle, 0, &to.handle, start, bytes);
}

/// Weights, vectors, outputs and points, as the shaders number them.
fn bindings_of(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    let entries: Vec<_> = [true, true, false, true]
        .into_iter()
        .zip(0..)
        .map(|(read_only, binding)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}
