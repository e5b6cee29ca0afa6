//! Checks of the values of a contract file.
//!
//! Each kind of file has a `check` module beside its types. It takes every struct apart by name: a new key does not compile until its
//! values are checked or marked as free. Every check also notes the valid range in words, and `KEYS.md` is made from these notes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// The most bytes of anything: a pebibyte.
pub const BYTES_MAX: u64 = 1 << 50;
/// The most of any rate a second: bytes, operations, reads.
pub const RATE_MAX: f64 = 1e18;
/// The most tokens a second.
pub const TOKENS_PER_SECOND_MAX: f64 = 1e9;
/// The longest time that is expected of anything: a day.
pub const SECONDS_MAX: f64 = 86_400.0;
/// The highest number of a core.
pub const CORE_MAX: u32 = 65_535;
/// The most cores of a machine.
pub const CORES_MAX: usize = 1024;
/// The most layers of a model.
pub const LAYERS_MAX: u32 = 4096;
/// The most neurons of a layer.
pub const NEURONS_MAX: u32 = u32::MAX;
/// The longest context.
pub const CONTEXT_MAX: u32 = 1 << 28;
/// The longest text, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// The greatest loss of perplexity that a level is measured to have.
pub const LOSS_MAX: f64 = 1e6;
/// Maximum perplexity change of a lossless level, and of its bound: the effect of rounding.
pub const LOSSLESS_MAX: f64 = 0.05;

/// Storage formats of weights.
pub const FORMATS: [&str; 29] = [
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_0", "Q4_0x4", "IQ4_NL",
    "NVFP4", "Q4_K", "MXFP4", "IQ4_XS", "Q3_K", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "Q2_0",
    "TQ2_0", "IQ2_XXS", "IQ1_M", "TQ1_0", "IQ1_S", "Q1_0",
];
/// Storage formats of keys and values.
pub const KV_FORMATS: [&str; 4] = ["F16", "F32", "Q8_0", "Q4_0"];
/// Rounding of vectors where they meet weights in blocks.
pub const ACTIVATIONS: [&str; 2] = ["f32", "q8"];
/// Instruction sets that kernels are written in.
pub const INSTRUCTION_SETS: [&str; 6] = ["scalar", "avx2", "avx512", "neon", "dotprod", "i8mm"];
/// Compute units; the CPU is the first of every list.
pub const UNITS: [&str; 3] = ["cpu", "npu", GPU];
/// The unit that the engine computes on, beside the CPU.
pub const GPU: &str = "gpu";

/// A key with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct Wrong {
    /// The key, dotted, entries of lists counted from 0: `storage.reads[3].depth`.
    pub key: String,
    /// The value, and the values that would be right.
    pub problem: String,
}

/// The result of a check: nothing, or the first key with an invalid value.
pub type Checked = Result<(), Wrong>;

/// Valid ranges in words, by key; entries of lists are `[]`.
pub type Ranges = RefCell<BTreeMap<String, String>>;

/// A place in a contract file.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    above: Option<&'a Self>,
    step: Step<'a>,
    ranges: Option<&'a Ranges>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    File,
    Key(&'a str),
    Item(usize),
}

impl<'a> At<'a> {
    /// The whole file; ranges are noted in `ranges`.
    pub fn file(ranges: Option<&'a Ranges>) -> Self {
        Self { above: None, step: Step::File, ranges }
    }

    /// A key of the table at this place.
    pub fn key<'b>(&'b self, name: &'b str) -> At<'b> {
        At { above: Some(self), step: Step::Key(name), ranges: self.ranges }
    }

    /// An entry of the list at this place.
    pub fn item(&self, index: usize) -> At<'_> {
        At { above: Some(self), step: Step::Item(index), ranges: self.ranges }
    }

    /// Checks each entry of the list at this place.
    ///
    /// # Errors
    /// The first invalid entry's.
    pub fn each<T>(&self, entries: &[T], check: impl Fn(&At<'_>, &T) -> Checked) -> Checked {
        entries.iter().enumerate().try_for_each(|(index, entry)| check(&self.item(index), entry))
    }

    /// Reports an invalid value; `problem` names it and the valid ones.
    ///
    /// # Errors
    /// Always.
    pub fn wrong(&self, problem: impl Display) -> Checked {
        Err(Wrong { key: self.to_string(), problem: problem.to_string() })
    }

    /// Requires a condition of the value at this place.
    ///
    /// # Errors
    /// If `so` is false.
    pub fn holds(&self, so: bool, problem: impl FnOnce() -> String) -> Checked {
        if so { Ok(()) } else { self.wrong(problem()) }
    }

    /// Notes the valid range at this place, in words.
    pub fn note(&self, range: &str) {
        if let Some(ranges) = self.ranges {
            let mut key = String::new();
            // writing to a string cannot fail
            let _written = self.write(&mut key, false);
            ranges.borrow_mut().insert(key, range.to_owned());
        }
    }

    /// A Boolean; both values are valid.
    pub fn free(&self, _value: bool) {
        self.note("`true` or `false`");
    }

    /// An enum; every value is valid.
    pub fn one_of_its_names<T>(&self, _value: T) {
        self.note("one of its names");
    }

    /// A whole number from `least` to `most`.
    ///
    /// # Errors
    /// If it is another.
    pub fn count(&self, value: impl Into<u64>, least: u64, most: u64) -> Checked {
        self.note(&if least == most { shown(least) } else { format!("{} to {}", shown(least), shown(most)) });
        let value = value.into();
        self.holds((least..=most).contains(&value), || format!("is {value}; {least} to {most} are possible"))
    }

    /// A number of bytes, which may be none.
    ///
    /// # Errors
    /// Above [`BYTES_MAX`].
    pub fn bytes(&self, value: u64) -> Checked {
        self.count(value, 0, BYTES_MAX)
    }

    /// Bytes of whole pages, which may be none.
    ///
    /// # Errors
    /// Above [`BYTES_MAX`], or a part of a page.
    pub fn pages(&self, value: u64) -> Checked {
        self.bytes(value)?;
        self.note(&format!("whole pages of {}, up to {}", crate::PAGE_BYTES, shown(BYTES_MAX)));
        self.holds(value.is_multiple_of(crate::PAGE_BYTES), || {
            format!("is {value}; whole pages of {} bytes are possible", crate::PAGE_BYTES)
        })
    }

    /// A finite number from `least` to `most`.
    ///
    /// # Errors
    /// Any other value, and NaN.
    pub fn number(&self, value: f64, least: f64, most: f64) -> Checked {
        let (low, high) = (number(least), number(most));
        self.note(&format!("{low} to {high}"));
        self.holds((least..=most).contains(&value), || {
            format!("is {}; a number from {low} to {high} is possible", number(value))
        })
    }

    /// A rate: finite and above zero.
    ///
    /// # Errors
    /// If it is not, or above [`RATE_MAX`].
    pub fn rate(&self, value: f64) -> Checked {
        self.above_zero(value, RATE_MAX)
    }

    /// A finite number above zero, up to `most`.
    ///
    /// # Errors
    /// If it is not.
    pub fn above_zero(&self, value: f64, most: f64) -> Checked {
        self.note(&format!("above 0, up to {}", number(most)));
        self.holds(value > 0.0 && value <= most, || {
            format!("is {}; a number above 0 and up to {} is possible", number(value), number(most))
        })
    }

    /// A time in seconds, which may be none.
    ///
    /// # Errors
    /// If it is negative, no number, or above [`SECONDS_MAX`].
    pub fn seconds(&self, value: f64) -> Checked {
        self.number(value, 0.0, SECONDS_MAX)
    }

    /// A fraction.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    pub fn fraction(&self, value: f64) -> Checked {
        self.note("0 to 1");
        self.holds((0.0..=1.0).contains(&value), || format!("is {}; a fraction is 0 to 1", number(value)))
    }

    /// One of these names.
    ///
    /// # Errors
    /// Any other name, with the known ones.
    pub fn named(&self, value: &str, names: &[&str]) -> Checked {
        self.note(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "));
        self.holds(names.contains(&value), || format!("is `{value}`; known here: {}", names.join(", ")))
    }

    /// A text for people: one line, not empty.
    ///
    /// # Errors
    /// If it is empty, too long or has control characters.
    pub fn text(&self, value: &str) -> Checked {
        self.note("one line of text");
        let fits = !value.is_empty() && value.len() <= TEXT_BYTES_MAX && !value.chars().any(char::is_control);
        self.holds(fits, || match value {
            "" => "is empty; a line of text belongs there".to_owned(),
            _ => format!("is not one line of at most {TEXT_BYTES_MAX} bytes"),
        })
    }

    /// A name without spaces, as folders and levels have: letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// If it is empty, too long or has other characters.
    pub fn plain(&self, value: &str) -> Checked {
        self.note("letters, digits, `-`, `_` and `.`");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let fits = !value.is_empty() && value.len() <= 256 && value.chars().all(plain);
        self.holds(fits, || format!("is `{value}`; letters, digits, `-`, `_` and `.` are possible"))
    }

    /// A file's name without a folder.
    ///
    /// # Errors
    /// If it is empty, a path, or has control characters.
    pub fn file_name(&self, value: &str) -> Checked {
        self.text(value)?;
        self.note("a file name without a folder");
        let fits = !value.contains('/') && value != "." && value != ".." && value.len() <= 255;
        self.holds(fits, || format!("is `{value}`; a file name without a folder belongs there"))
    }

    /// Numbers of cores, each once.
    ///
    /// # Errors
    /// The first core that is repeated or too high; or too many of them.
    pub fn cores(&self, ids: &[u32]) -> Checked {
        self.each(ids, |at, &id| at.count(id, 0, CORE_MAX.into()))?;
        self.note(&format!("each once, at most {CORES_MAX}"));
        self.holds(ids.len() <= CORES_MAX, || format!("has {} cores; {CORES_MAX} are possible", ids.len()))?;
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        self.holds(twice.is_none(), || {
            format!("names core {} twice; name each once", twice.map_or(0, |pair| pair[0]))
        })
    }

    /// A list of `count` entries, as many as `whole`.
    ///
    /// # Errors
    /// If it has more or fewer.
    pub fn length(&self, found: usize, count: usize, whole: &str) -> Checked {
        self.note(&format!("as many as {whole}"));
        self.holds(found == count, || {
            format!("has {found} entries; as many as {whole} belong there, {count}")
        })
    }

    fn write(&self, out: &mut impl fmt::Write, numbered: bool) -> fmt::Result {
        if let Some(above) = self.above {
            above.write(out, numbered)?;
            match self.step {
                Step::Key(name) if matches!(above.step, Step::File) => out.write_str(name)?,
                Step::Key(name) => write!(out, ".{name}")?,
                Step::Item(index) if numbered => write!(out, "[{index}]")?,
                Step::Item(_) => out.write_str("[]")?,
                Step::File => {}
            }
        }
        Ok(())
    }
}

impl Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, true)
    }
}

/// The shortest text of a number.
pub fn number(value: f64) -> String {
    let text = format!("{value:?}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A limit in words: powers of two are shown as such where they are long.
fn shown(value: u64) -> String {
    match value {
        0..=99_999 => value.to_string(),
        _ if value.is_power_of_two() => format!("2^{}", value.trailing_zeros()),
        u64::MAX => "2^64 - 1".to_owned(),
        _ if (value + 1).is_power_of_two() => format!("2^{} - 1", (value + 1).trailing_zeros()),
        _ => value.to_string(),
    }
}
