//! The text of the shaders: a format's block, and the loop of a kernel around it.
//!
//! ```text
//! common.wgsl          bindings, and reading numbers at byte offsets
//! blocks/FORMAT.wgsl   eight(block, i): values 8 i to 8 i + 7 of the block at a byte offset
//! row.wgsl             weights(row, e): values 8 e to 8 e + 7 of a row
//! plain, few or many   the kernel
//! ```
//!
//! A format is described once, by its function `eight`; all kernels are generated from it. Loops over a tile's
//! rows and vectors are written out here, because drivers keep sums in registers only where every index is a
//! constant.

use std::fmt::Write as _;

use kernels::Format;

/// Threads of a workgroup, except in [`Kernel::Many`].
const THREADS: usize = 64;
/// Rows that a workgroup of [`Kernel::Few`] computes.
pub(crate) const FEW_ROWS: usize = 4;
/// Vectors that pass [`Kernel::Few`] together, at most.
pub(crate) const FEW_VECTORS: usize = 8;
/// Rows, and vectors, that a workgroup of [`Kernel::Many`] computes.
pub(crate) const TILE: usize = 64;
/// Rows, and vectors, that a thread of [`Kernel::Many`] computes.
const TILE_OF_THREAD: usize = 4;
/// Formats with a grid of points, in the order of the grids in their buffer. `IQ1_S` has the grid of `IQ1_M`.
pub(crate) const GRIDS: [Format; 6] =
    [Format::Iq1M, Format::Iq2Xxs, Format::Iq2Xs, Format::Iq2S, Format::Iq3Xxs, Format::Iq3S];

/// A loop over rows and vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    /// The reference: a thread computes one product, column after column.
    Plain,
    /// Up to so many vectors, each weight read once for all of them.
    Few(usize),
    /// Any number of vectors, in tiles.
    Many,
}

impl Kernel {
    /// The kernel for few vectors. It comes in three sizes, since each is compiled by itself.
    pub(crate) fn for_few(vectors: usize) -> Self {
        match vectors {
            0..=1 => Self::Few(1),
            2..=4 => Self::Few(4),
            _ => Self::Few(FEW_VECTORS),
        }
    }

    /// Rows and vectors of a workgroup.
    pub(crate) fn tile(self) -> [usize; 2] {
        match self {
            Self::Plain => [THREADS, 1],
            Self::Few(vectors) => [FEW_ROWS, vectors],
            Self::Many => [TILE, TILE],
        }
    }
}

/// How the threads of a workgroup are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lanes {
    /// By the device's subgroups, each of at least so many lanes.
    Subgroups(usize),
    /// Through memory of the workgroup, in groups of so many lanes.
    Memory(usize),
}

/// The text of a shader; its entry point is `products`.
pub(crate) fn text(format: Format, kernel: Kernel, lanes: Lanes) -> String {
    let mut constants = format!("const THREADS = {THREADS}u;\n");
    let mut pieces = vec![include_str!("shaders/common.wgsl"), block(format)];
    let plain = !format.has_blocks();
    let values = if plain { 8 } else { format.block_values() };
    let bytes = values / format.block_values() * format.block_bytes();
    let _infallible = write!(
        constants,
        "const EIGHTS = {}u;\nconst BLOCK_BYTES = {bytes}u;\nconst GRID = {}u;\n",
        values / 8,
        grid_word(format)
    );
    pieces.push(if plain {
        include_str!("shaders/ragged_row.wgsl")
    } else {
        include_str!("shaders/row.wgsl")
    });
    pieces.push(include_str!("shaders/add.wgsl"));
    let body = match kernel {
        Kernel::Plain => include_str!("shaders/plain.wgsl").to_owned(),
        Kernel::Many => many(),
        Kernel::Few(vectors) => {
            let least = match lanes {
                Lanes::Subgroups(least) | Lanes::Memory(least) => least,
            };
            let _infallible = write!(
                constants,
                "const ROWS = {FEW_ROWS}u;\nconst VECTORS = {vectors}u;\nconst LANES = {least}u;\nconst GROUPS = {}u;\n",
                THREADS.div_ceil(least)
            );
            pieces.push(match lanes {
                Lanes::Subgroups(_) => include_str!("shaders/lanes_subgroup.wgsl"),
                Lanes::Memory(_) => include_str!("shaders/lanes_memory.wgsl"),
            });
            few(vectors, lanes)
        }
    };
    format!("{constants}\n{}\n{body}", pieces.join("\n"))
}

/// The first word of a format's grid in the buffer of all grids.
fn grid_word(format: Format) -> usize {
    let of = if format == Format::Iq1S { Format::Iq1M } else { format };
    let before = GRIDS.iter().take_while(|grid| **grid != of);
    before.map(|grid| kernels::grid(*grid).len() / 4).sum()
}

/// Lines for each pair of a row and a vector.
fn for_pairs(rows: usize, vectors: usize, line: impl Fn(usize, usize) -> String) -> String {
    let mut lines = String::new();
    for row in 0..rows {
        for vector in 0..vectors {
            lines.push_str(&line(row, vector));
            lines.push('\n');
        }
    }
    lines
}

fn few(vectors: usize, lanes: Lanes) -> String {
    let (builtins, lets) = match lanes {
        Lanes::Subgroups(_) => (
            "@builtin(subgroup_id) group_of_thread: u32,\n@builtin(subgroup_invocation_id) lane: u32,\n\
             @builtin(num_subgroups) groups: u32,",
            "",
        ),
        Lanes::Memory(_) => {
            ("", "let group_of_thread = thread / LANES;\nlet lane = thread % LANES;\nlet groups = GROUPS;")
        }
    };
    let mut starts = String::new();
    for row in 0..FEW_ROWS {
        starts.push_str(&format!(
            "let row_{row} = (task.first_row + min(first_row + {row}u, task.rows - 1u)) * task.row_bytes;\n"
        ));
    }
    for vector in 0..vectors {
        starts.push_str(&format!("let x_{vector} = min({vector}u, task.vectors - 1u) * task.eights;\n"));
    }
    let mut adds = String::new();
    for vector in 0..vectors {
        adds.push_str(&format!(
            "let a_{vector} = vectors[2u * (x_{vector} + e)];\nlet b_{vector} = vectors[2u * (x_{vector} + e) + 1u];\n"
        ));
    }
    for row in 0..FEW_ROWS {
        adds.push_str(&format!("let w_{row} = weights(row_{row}, e);\n"));
    }
    adds.push_str(&for_pairs(FEW_ROWS, vectors, |r, v| {
        format!("s_{r}_{v} = add_eight(w_{r}, a_{v}, b_{v}, s_{r}_{v});")
    }));
    let lane_sums = for_pairs(FEW_ROWS, vectors, |r, v| {
        let at = r * vectors + v;
        format!(
            "s_{r}_{v} = lanes_sum(s_{r}_{v}, thread);\n\
             if lane == 0u {{ partial[group_of_thread * ROWS * VECTORS + {at}u] = s_{r}_{v}; }}"
        )
    });
    include_str!("shaders/few.wgsl")
        .replace("{{lane_builtins}}", builtins)
        .replace("{{lane_lets}}", lets)
        .replace("{{starts}}", &starts)
        .replace("{{sums}}", &for_pairs(FEW_ROWS, vectors, |r, v| format!("var s_{r}_{v} = 0.0;")))
        .replace("{{adds}}", &adds)
        .replace("{{lane_sums}}", &lane_sums)
}

fn many() -> String {
    let apart = TILE / TILE_OF_THREAD;
    let mut adds = String::new();
    for i in 0..TILE_OF_THREAD {
        adds.push_str(&format!(
            "let w_{i} = w_tile[place(r + {0}u, four)];\nlet x_{i} = x_tile[place(v + {0}u, four)];\n",
            i * apart
        ));
    }
    adds.push_str(&for_pairs(TILE_OF_THREAD, TILE_OF_THREAD, |r, v| {
        format!("s_{r}_{v} = add_four(w_{r}, x_{v}, s_{r}_{v});")
    }));
    let writes = for_pairs(TILE_OF_THREAD, TILE_OF_THREAD, |r, v| {
        format!("write(first_row + r + {}u, first_vector + v + {}u, s_{r}_{v});", r * apart, v * apart)
    });
    include_str!("shaders/many.wgsl")
        .replace(
            "{{sums}}",
            &for_pairs(TILE_OF_THREAD, TILE_OF_THREAD, |r, v| format!("var s_{r}_{v} = 0.0;")),
        )
        .replace("{{adds}}", &adds)
        .replace("{{writes}}", &writes)
}

/// The description of a format's block.
fn block(format: Format) -> &'static str {
    match format {
        Format::F32 => include_str!("shaders/blocks/f32.wgsl"),
        Format::F16 => include_str!("shaders/blocks/f16.wgsl"),
        Format::BF16 => include_str!("shaders/blocks/bf16.wgsl"),
        Format::Q8_0 => include_str!("shaders/blocks/q8_0.wgsl"),
        Format::Q6K => include_str!("shaders/blocks/q6_k.wgsl"),
        Format::Q5_1 => include_str!("shaders/blocks/q5_1.wgsl"),
        Format::Q5_0 => include_str!("shaders/blocks/q5_0.wgsl"),
        Format::Q5K => include_str!("shaders/blocks/q5_k.wgsl"),
        Format::Q4_1 => include_str!("shaders/blocks/q4_1.wgsl"),
        Format::Q4_0 => include_str!("shaders/blocks/q4_0.wgsl"),
        Format::Q4_0X4 => include_str!("shaders/blocks/q4_0x4.wgsl"),
        Format::Iq4Nl => include_str!("shaders/blocks/iq4_nl.wgsl"),
        Format::Nvfp4 => include_str!("shaders/blocks/nvfp4.wgsl"),
        Format::Q4K => include_str!("shaders/blocks/q4_k.wgsl"),
        Format::Mxfp4 => include_str!("shaders/blocks/mxfp4.wgsl"),
        Format::Iq4Xs => include_str!("shaders/blocks/iq4_xs.wgsl"),
        Format::Q3K => include_str!("shaders/blocks/q3_k.wgsl"),
        Format::Iq3S => include_str!("shaders/blocks/iq3_s.wgsl"),
        Format::Iq3Xxs => include_str!("shaders/blocks/iq3_xxs.wgsl"),
        Format::Q2K => include_str!("shaders/blocks/q2_k.wgsl"),
        Format::Iq2S => include_str!("shaders/blocks/iq2_s.wgsl"),
        Format::Iq2Xs => include_str!("shaders/blocks/iq2_xs.wgsl"),
        Format::Q2_0 => include_str!("shaders/blocks/q2_0.wgsl"),
        Format::Tq2_0 => include_str!("shaders/blocks/tq2_0.wgsl"),
        Format::Iq2Xxs => include_str!("shaders/blocks/iq2_xxs.wgsl"),
        Format::Iq1M => include_str!("shaders/blocks/iq1_m.wgsl"),
        Format::Tq1_0 => include_str!("shaders/blocks/tq1_0.wgsl"),
        Format::Iq1S => include_str!("shaders/blocks/iq1_s.wgsl"),
        Format::Q1_0 => include_str!("shaders/blocks/q1_0.wgsl"),
    }
}
