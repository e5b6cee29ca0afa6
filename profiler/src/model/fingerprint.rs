//! A model's fingerprint, and a check that its weights are finite: one pass over its files before any measurement.

use anyhow::bail;
use flashplan::internals::model::gguf::TensorInfo;
use flashplan::internals::model::source::SourceModel;
use kernels::first_not_finite;

use crate::Context;

/// Bytes of the model between two checks whether to stop.
const HASHED_AT_ONCE: usize = 256 << 20;

/// BLAKE3 of the whole file, or of all files in order.
///
/// # Errors
/// [`crate::Stopped`], and a weight that is not finite, by name.
pub(super) fn of(context: &Context, source: &SourceModel<'_>) -> anyhow::Result<String> {
    let gguf = source.gguf();
    let mut tensors: Vec<&TensorInfo> = gguf.tensors().iter().collect();
    tensors.sort_by_key(|tensor| tensor.offset);
    let mut hasher = blake3::Hasher::new();
    for (path, start, file) in gguf.files() {
        let mut hashed = start;
        let mut hash = |end: usize| {
            // two tensors may have the same bytes
            if end > hashed {
                hasher.update(&file[hashed - start..end - start]);
                hashed = end;
            }
        };
        let of_file = |tensor: &&&TensorInfo| (start..start + file.len()).contains(&(tensor.offset as usize));
        for tensor in tensors.iter().filter(of_file) {
            let Ok(format) = tensor.format() else { continue };
            let first = tensor.offset as usize;
            let at_once = HASHED_AT_ONCE / format.block_bytes() * format.block_bytes();
            for (number, bytes) in gguf.tensor_bytes(tensor).chunks(at_once).enumerate() {
                context.stopped()?;
                let begins = number * at_once;
                if let Some(block) = first_not_finite(format, bytes) {
                    let value = (begins / format.block_bytes() + block) * format.block_values();
                    bail!(
                        "{}: weight {value} of the tensor {} is infinite or not a number: the file is damaged, or was \
                         converted so; fetch or convert it again",
                        path.display(),
                        tensor.name
                    );
                }
                hash(first + begins + bytes.len());
            }
        }
        hash(start + file.len());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
