//! Writing NumPy's array format 1.0: float32 matrices. Not here: reading it.

use std::io::{self, Write};

/// Writes the header of a float32 matrix \[rows, cols\], little endian, C order; the values follow.
pub fn write_header(out: &mut impl Write, rows: usize, cols: usize) -> io::Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    // Magic, version and length take 10 bytes; the whole is a multiple of 64 and ends with a line feed.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.push_str(&" ".repeat(padded - header.len() - 1));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_header_is_aligned_and_ends_with_a_line_feed() {
        let mut bytes = Vec::new();
        super::write_header(&mut bytes, 24, 505).expect("memory");
        assert_eq!(bytes.len() % 64, 0);
        assert_eq!(bytes.last(), Some(&b'\n'));
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    }
}
