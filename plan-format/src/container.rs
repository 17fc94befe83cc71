//! The file's frame: a 64-byte header, a table of named sections with checksums, the sections at multiples of 64 bytes.
//! It knows nothing of what the sections mean (`sections.rs` does).
//!
//! ```text
//!  0  8  magic "ATSPLAN\0"
//!  8  4  container version
//! 12  4  0x01020304 as written: tells the byte order
//! 16  8  length of the file
//! 24  4  number of sections
//! 28  4  CRC-32 of the section table, which follows the header
//! 32 28  zero
//! 60  4  CRC-32 of the 60 bytes before
//! ```
//!
//! An entry of the table: name (8, zero-padded ASCII), section version (4), CRC-32 of the bytes (4), offset (8), length
//! (8). All numbers are little-endian. Every byte of a file is covered: by a checksum, or it is padding and must be
//! zero.

use crate::error::{Error, Result};

/// First bytes of every plan.
pub const MAGIC: &[u8; 8] = b"ATSPLAN\0";
/// Version of the container and of the set of sections.
pub const VERSION: u32 = 1;
const BYTE_ORDER: u32 = 0x0102_0304;
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const ENTRY_BYTES: usize = 32;
const ALIGNMENT_BYTES: usize = 64;
/// Most sections of a file, which bounds what a damaged header can ask for.
const MAX_SECTIONS: usize = 64;

/// A section to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionBytes {
    /// Its name, at most 8 ASCII characters.
    pub name: &'static str,
    /// Version of its encoding.
    pub version: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A section as found in a file; its checksum was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its name.
    pub name: String,
    /// Version of its encoding.
    pub version: u32,
    /// Its content.
    pub bytes: &'a [u8],
}

/// A file of these sections, in this order.
pub fn write(sections: &[SectionBytes]) -> Vec<u8> {
    let mut table = Vec::with_capacity(sections.len() * ENTRY_BYTES);
    let mut at = (HEADER_BYTES + sections.len() * ENTRY_BYTES).next_multiple_of(ALIGNMENT_BYTES);
    let mut end = at;
    for section in sections {
        let mut name = [0; 8];
        name.iter_mut().zip(section.name.bytes()).for_each(|(to, from)| *to = from);
        table.extend_from_slice(&name);
        table.extend_from_slice(&section.version.to_le_bytes());
        table.extend_from_slice(&crc32fast::hash(&section.bytes).to_le_bytes());
        table.extend_from_slice(&(at as u64).to_le_bytes());
        table.extend_from_slice(&(section.bytes.len() as u64).to_le_bytes());
        end = at + section.bytes.len();
        at = end.next_multiple_of(ALIGNMENT_BYTES);
    }
    let mut file = header(end, sections.len(), &table);
    file.extend_from_slice(&table);
    for section in sections {
        file.resize(file.len().next_multiple_of(ALIGNMENT_BYTES), 0);
        file.extend_from_slice(&section.bytes);
    }
    file.resize(end, 0);
    file
}

fn header(file_bytes: usize, sections: usize, table: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(file_bytes);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&BYTE_ORDER.to_le_bytes());
    header.extend_from_slice(&(file_bytes as u64).to_le_bytes());
    header.extend_from_slice(&(sections as u32).to_le_bytes());
    header.extend_from_slice(&crc32fast::hash(table).to_le_bytes());
    header.resize(HEADER_BYTES - 4, 0);
    header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
    header
}

/// The sections of a file.
///
/// # Errors
/// The first thing that is wrong, from magic to checksums.
pub fn read(file: &[u8]) -> Result<Vec<Section<'_>>> {
    let count = read_header(file)?;
    let table_end = HEADER_BYTES + count * ENTRY_BYTES;
    let table = file.get(HEADER_BYTES..table_end).ok_or_else(|| damaged("the section table ends beyond the file"))?;
    if crc32fast::hash(table) != u32_at(file, 28) {
        return Err(damaged("the section table's checksum is wrong"));
    }
    let mut sections = Vec::with_capacity(count);
    let mut end = table_end;
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let (section, next_end) = read_section(file, entry, end)?;
        sections.push(section);
        end = next_end;
    }
    if end != file.len() {
        return Err(damaged(&format!("there are {} bytes after the last section", file.len() - end)));
    }
    Ok(sections)
}

/// Checks the header; gives the number of sections.
fn read_header(file: &[u8]) -> Result<usize> {
    if file.is_empty() {
        return Err(Error::Empty);
    }
    let start = &file[..file.len().min(MAGIC.len())];
    if start != &MAGIC[..start.len()] {
        return Err(Error::Magic);
    }
    if file.len() < HEADER_BYTES {
        return Err(Error::Truncated { stated_bytes: HEADER_BYTES as u64, found_bytes: file.len() as u64 });
    }
    match u32_at(file, 12) {
        BYTE_ORDER => {}
        other if other.swap_bytes() == BYTE_ORDER => return Err(Error::ByteOrder),
        _ => return Err(damaged("the header's byte order mark is wrong")),
    }
    // Before the checksum, since a later version may place that elsewhere.
    let version = u32_at(file, 8);
    if version != VERSION {
        return Err(Error::Version { found: version, supported: VERSION });
    }
    if crc32fast::hash(&file[..HEADER_BYTES - 4]) != u32_at(file, HEADER_BYTES - 4) {
        return Err(damaged("the header's checksum is wrong"));
    }
    if file[32..HEADER_BYTES - 4].iter().any(|&byte| byte != 0) {
        return Err(damaged("the header's reserved bytes are not zero"));
    }
    let stated_bytes = u64_at(file, 16);
    if stated_bytes != file.len() as u64 {
        return Err(Error::Truncated { stated_bytes, found_bytes: file.len() as u64 });
    }
    match u32_at(file, 24) as usize {
        count @ 0..=MAX_SECTIONS => Ok(count),
        count => Err(damaged(&format!("it has {count} sections; at most {MAX_SECTIONS} are accepted"))),
    }
}

/// The section of a table entry, which must begin at the first aligned offset from `end` on; and where it ends.
fn read_section<'a>(file: &'a [u8], entry: &[u8], end: usize) -> Result<(Section<'a>, usize)> {
    let name = std::str::from_utf8(&entry[..8]).unwrap_or("?").trim_end_matches('\0').to_owned();
    let (offset, length) = (u64_at(entry, 16), u64_at(entry, 24));
    let begin = end.next_multiple_of(ALIGNMENT_BYTES);
    let range = usize::try_from(length).ok().and_then(|n| begin.checked_add(n)).map(|next| begin..next);
    let bytes = range.filter(|_| offset == begin as u64).and_then(|range| file.get(range));
    let Some(bytes) = bytes else {
        return Err(damaged(&format!("section `{name}` does not lie in its place in the file")));
    };
    if file[end..begin].iter().any(|&byte| byte != 0) {
        return Err(damaged(&format!("the padding before section `{name}` is not zero")));
    }
    if crc32fast::hash(bytes) != u32_at(entry, 12) {
        return Err(Error::Checksum { section: name });
    }
    Ok((Section { name, version: u32_at(entry, 8), bytes }, begin + bytes.len()))
}

fn damaged(problem: &str) -> Error {
    Error::Damaged { problem: problem.to_owned() }
}

/// The number at `at`; callers know that it is inside.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections() -> Vec<SectionBytes> {
        let section = |name, version, bytes: &[u8]| SectionBytes { name, version, bytes: bytes.to_vec() };
        vec![section("first", 1, b"some bytes"), section("none", 7, b""), section("eightchr", 2, &[9; 130])]
    }

    #[test]
    fn sections_come_back() {
        let file = write(&sections());
        let read = read(&file).unwrap();
        for (found, written) in read.iter().zip(sections()) {
            assert_eq!(
                (found.name.as_str(), found.version, found.bytes),
                (written.name, written.version, &*written.bytes)
            );
        }
        assert_eq!(read.len(), 3);
        let start = file.as_ptr() as usize;
        assert!(read.iter().all(|s| (s.bytes.as_ptr() as usize - start).is_multiple_of(64)));
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_found() {
        let file = write(&sections());
        for length in 0..file.len() {
            assert!(read(&file[..length]).is_err(), "cut at {length}");
        }
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).is_err(), "bit {bit}");
        }
        let longer = [file.as_slice(), &[0]].concat();
        assert!(matches!(read(&longer), Err(Error::Truncated { .. })));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let file = write(&sections());
        let edited = |at: usize, bytes: &[u8]| {
            let mut file = file.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            read(&file).unwrap_err()
        };
        assert_eq!(edited(0, b"GGUF"), Error::Magic);
        assert_eq!(edited(8, &2_u32.to_le_bytes()), Error::Version { found: 2, supported: 1 });
        assert_eq!(edited(12, &BYTE_ORDER.to_be_bytes()), Error::ByteOrder);
        assert_eq!(read(&[]), Err(Error::Empty));
        let half = read(&file[..file.len() / 2]).unwrap_err();
        let stated_bytes = file.len() as u64;
        assert_eq!(half, Error::Truncated { stated_bytes, found_bytes: stated_bytes / 2 });
    }
}
