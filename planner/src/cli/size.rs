//! Sizes as people write them: `6G` = `6GiB` = `6144M`, powers of 1024, or a share of what is free (`80%`).

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// This share of what is free, in percent.
    PercentOfFree(u8),
}

/// Reads an amount.
///
/// # Errors
/// A text that says what would be accepted.
pub fn parse_amount(text: &str) -> Result<Amount, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Amount::Bytes(0));
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let value: f64 = number.parse().map_err(|_| refuse(text))?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "%" if (1.0..=100.0).contains(&value) && value.fract() == 0.0 => return Ok(Amount::PercentOfFree(value as u8)),
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refuse(text)),
    };
    let bytes = value * (1_u64 << shift) as f64;
    if bytes >= (1_u64 << 60) as f64 {
        return Err(refuse(text));
    }
    if bytes < 1.0 && value > 0.0 {
        return Err(format!("`{text}` is less than a byte; write 0 for none"));
    }
    Ok(Amount::Bytes(bytes as u64))
}

fn refuse(text: &str) -> String {
    format!("`{text}` is no size; write 6G, 6144M or 1.5GiB (powers of 1024), 80% of what is free, or 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let gib = |n: u64| Ok(Amount::Bytes(n << 30));
        for text in ["6G", "6GiB", "6144M", "6g", "6 GB", "6144MiB", "6291456K", "6.0G"] {
            assert_eq!(parse_amount(text), gib(6), "{text}");
        }
        assert_eq!(parse_amount("1.5G"), Ok(Amount::Bytes(1536 << 20)));
        assert_eq!(parse_amount("2T"), gib(2048));
        assert_eq!(parse_amount("0"), Ok(Amount::Bytes(0)));
        assert_eq!(parse_amount("80%"), Ok(Amount::PercentOfFree(80)));
    }

    #[test]
    fn a_size_that_is_less_than_a_byte_is_not_taken_for_none() {
        for text in ["0.0000001K", "0.0009K", "0.0000000000001T"] {
            assert!(parse_amount(text).unwrap_err().contains("less than a byte"), "{text}");
        }
        for (text, bytes) in [("0K", 0), ("0.0G", 0), ("0.001K", 1), ("0.5K", 512)] {
            assert_eq!(parse_amount(text), Ok(Amount::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_examples() {
        for text in ["", "6", "G", "-6G", "6X", "1e3G", "6.6.6G", "0%", "101%", "8.5%", "99999999999T", "NaNG", "inf%"]
        {
            assert!(parse_amount(text).unwrap_err().contains("6144M"), "{text}");
        }
    }
}
