//! Sizes as people write them: `12G` and `12GiB` are 12 * 2^30 bytes, `12GB` is 12 * 10^9.

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size; write a number and one of K, M, G, T, KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000) or B, for example 12G"
)]
pub struct SizeError {
    text: String,
}

/// Bytes from a text such as `2600MiB`, `1.5G` or `4096`.
///
/// # Errors
/// [`SizeError`] when the text is no number with a known unit, or beyond 2^63 bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError { text: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(error()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).filter(|&b| b < 1 << 63).ok_or_else(error);
    }
    let value = number.parse::<f64>().map_err(|_| error())? * scale as f64;
    if value.is_finite() && value < 9.2e18 { Ok(value as u64) } else { Err(error()) }
}

/// Bytes for people: `12.0 GiB`, `16.4 MiB`, `512 B`.
pub fn show(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            return format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_letter_is_a_power_of_1024_and_a_b_makes_it_decimal() {
        for (text, bytes) in [
            ("12G", 12 << 30),
            ("12GiB", 12 << 30),
            ("12 gib", 12 << 30),
            ("12GB", 12_000_000_000),
            ("1.5K", 1536),
            ("4096", 4096),
            ("2600MiB", 2600 << 20),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_list_of_units() {
        for text in ["", "G", "-1G", "12X", "1e9", "nan", "99999999999999T", "1.2.3M", "12 G B"] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains("for example 12G"), "{message}");
        }
    }
}
