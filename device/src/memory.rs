//! Host memory for weights and activations: huge-page regions, parallel reads into them, and what the machine has left.
//!
//! Plain threads read weights from huge pages 6 to 16 % faster than from 4 KiB pages, and the driver registers them 10
//! times faster than it allocates pinned memory itself (DESIGN section 11). Invariant: a region is written through
//! `&mut` only, so that a shared one can be read by copy engines and workers alike without locks. Knows no tensor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::DeviceError;
use crate::sysfile::SysRoot;

/// Size and alignment of a huge page on x86-64.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that one read call asks for: large enough for the device, small enough to balance threads.
const READ_BYTES: usize = 4 << 20;

/// A zeroed private mapping, aligned to a huge page, with huge pages requested. Freed when dropped.
#[derive(Debug)]
pub struct HostRegion {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the region owns its mapping; shared access only reads, exclusive access is `&mut`.
unsafe impl Send for HostRegion {}
// SAFETY: as above.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    /// Reserves `bytes` of zeroes; pages are taken when first touched. Errors: the system refuses the address space.
    pub fn new(bytes: usize) -> Result<Self, DeviceError> {
        let refused = |source| DeviceError::HostMemory { bytes: bytes as u64, source };
        let mapping_bytes =
            bytes.checked_add(2 * HUGE_PAGE_BYTES).ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?
                & !(HUGE_PAGE_BYTES - 1);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
        let mapping =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let mapping = mapping.map_err(|errno| refused(errno.into()))?.cast::<u8>();
        // SAFETY: the aligned start lies less than a huge page into the mapping, which is at least one longer than
        // `bytes`.
        let start = unsafe { mapping.add(mapping.align_offset(HUGE_PAGE_BYTES)) };
        // SAFETY: the range belongs to the mapping. Without transparent huge pages the call fails and small ones serve.
        let _ = unsafe { madvise(start.cast(), bytes.next_multiple_of(HUGE_PAGE_BYTES), Advice::LinuxHugepage) };
        let (Some(mapping), Some(start)) = (NonNull::new(mapping), NonNull::new(start)) else {
            return Err(refused(std::io::ErrorKind::OutOfMemory.into()));
        };
        Ok(Self { mapping, mapping_bytes, start, bytes })
    }

    /// Size as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the first byte, huge-page aligned.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The content.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised (zeroed by the kernel) bytes start there; writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The content, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no borrow outlives the region. Failure would leak, nothing else.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// A piece of a file and where it goes in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPiece {
    /// Index into the list of files.
    pub file: usize,
    /// First byte in the file.
    pub file_offset_bytes: u64,
    /// First byte in the buffer.
    pub buffer_offset_bytes: usize,
    /// Length.
    pub bytes: usize,
}

/// Reads `pieces` of `files` into `buffer` with `threads` threads; `progress_bytes` grows as they arrive.
/// Errors: pieces that overlap in the buffer, leave it or name no file; a read that fails or ends early.
pub fn read_pieces(
    files: &[File],
    pieces: &[ReadPiece],
    buffer: &mut [u8],
    threads: usize,
    progress_bytes: &AtomicU64,
) -> Result<(), DeviceError> {
    let chunks = Mutex::new(cut_chunks(files.len(), pieces, buffer)?.into_iter());
    let first_error = Mutex::new(None);
    let work = || {
        while let Some((file, offset, target)) = lock(&chunks).next() {
            if lock(&first_error).is_some() {
                return;
            }
            let bytes = target.len() as u64;
            match files[file].read_exact_at(target, offset) {
                Ok(()) => _ = progress_bytes.fetch_add(bytes, Ordering::Relaxed),
                Err(source) => {
                    let error = DeviceError::FileRead { file, offset_bytes: offset, bytes, source };
                    lock(&first_error).get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    lock(&first_error).take().map_or(Ok(()), Err)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// A read call: file, offset, target.
type Chunk<'a> = (usize, u64, &'a mut [u8]);

/// Cuts the buffer along the pieces into reads of [`READ_BYTES`], in order of the buffer.
fn cut_chunks<'a>(files: usize, pieces: &[ReadPiece], buffer: &'a mut [u8]) -> Result<Vec<Chunk<'a>>, DeviceError> {
    let mut sorted: Vec<&ReadPiece> = pieces.iter().filter(|piece| piece.bytes > 0).collect();
    sorted.sort_by_key(|piece| piece.buffer_offset_bytes);
    let (mut chunks, mut rest, mut rest_offset) = (Vec::new(), buffer, 0);
    for &piece in sorted {
        let bad = || DeviceError::ReadPiece { piece };
        let gap = piece.buffer_offset_bytes.checked_sub(rest_offset).ok_or_else(bad)?;
        let end =
            gap.checked_add(piece.bytes).filter(|&end| end <= rest.len() && piece.file < files).ok_or_else(bad)?;
        piece.file_offset_bytes.checked_add(piece.bytes as u64).ok_or_else(bad)?;
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(end);
        (rest, rest_offset) = (tail, rest_offset + end);
        let targets = head[gap..].chunks_mut(READ_BYTES).enumerate();
        chunks
            .extend(targets.map(|(i, target)| (piece.file, piece.file_offset_bytes + (i * READ_BYTES) as u64, target)));
    }
    Ok(chunks)
}

/// What this process may still take of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemoryInfo {
    /// All of the machine's.
    pub total_bytes: u64,
    /// What the kernel thinks can be had without swapping.
    pub available_bytes: u64,
    /// The control group's limit.
    pub cgroup_limit_bytes: Option<u64>,
    /// What the control group uses, page cache included.
    pub cgroup_used_bytes: Option<u64>,
    /// `ulimit -l`: what may be locked by `mlock`; `None` = no limit. The CUDA driver's pinning is not bound by it on
    /// ordinary Linux, `mlock` is.
    pub lock_limit_bytes: Option<u64>,
}

impl HostMemoryInfo {
    /// As of now, for this process.
    pub fn of_this_process() -> Result<Self, DeviceError> {
        Self::read(&SysRoot::new("/"))
    }

    /// From the files below `root`; the lock limit is this process's.
    pub fn read(root: &SysRoot) -> Result<Self, DeviceError> {
        let text = root.read("proc/meminfo")?;
        let field =
            |name: &str, expected| parse_meminfo(&text, name).ok_or_else(|| root.odd("proc/meminfo", &text, expected));
        Ok(Self {
            total_bytes: field("MemTotal", "a line `MemTotal: N kB`")?,
            available_bytes: field("MemAvailable", "a line `MemAvailable: N kB` (Linux 3.14 or later)")?,
            cgroup_limit_bytes: crate::cgroup::memory_limit_bytes(root),
            cgroup_used_bytes: crate::cgroup::memory_used_bytes(root),
            lock_limit_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        })
    }

    /// The least of what the machine and the control group leave. The group's page cache counts as free: the kernel
    /// takes it back before it refuses memory, and here it is mostly the model file itself.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_limit_bytes.map_or(self.available_bytes, |limit| limit.min(self.available_bytes))
    }
}

fn parse_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_region_is_zeroed_aligned_and_writable_to_its_last_byte() {
        for bytes in [0, 1, 4095, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 3 * HUGE_PAGE_BYTES - 1] {
            let mut region = HostRegion::new(bytes).unwrap();
            assert_eq!(region.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
            assert_eq!((region.len(), region.as_slice().iter().all(|&byte| byte == 0)), (bytes, true));
            region.as_mut_slice().fill(7);
            assert!(region.as_slice().iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn impossible_sizes_are_an_error() {
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert!(matches!(HostRegion::new(bytes), Err(DeviceError::HostMemory { .. })));
        }
    }

    fn files(contents: &[Vec<u8>]) -> Vec<File> {
        let write = |content: &Vec<u8>| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(content).unwrap();
            file
        };
        contents.iter().map(write).collect()
    }

    #[test]
    fn pieces_of_several_files_land_where_they_belong() {
        let contents: Vec<Vec<u8>> =
            (0..2).map(|file| (0..9_000_000_u32).map(|i| (i * 31 + file) as u8).collect()).collect();
        let piece = |file, file_offset_bytes, buffer_offset_bytes, bytes| ReadPiece {
            file,
            file_offset_bytes,
            buffer_offset_bytes,
            bytes,
        };
        let pieces = [piece(1, 5, 8_500_003, 400_000), piece(0, 7, 3, 8_500_000), piece(0, 0, 8_500_003, 0)];
        for threads in [1, 2, 5] {
            let (mut buffer, progress) = (vec![0; 8_900_010], AtomicU64::new(0));
            read_pieces(&files(&contents), &pieces, &mut buffer, threads, &progress).unwrap();
            assert_eq!(&buffer[..3], [0; 3]);
            assert_eq!(&buffer[3..8_500_003], &contents[0][7..8_500_007]);
            assert_eq!(&buffer[8_500_003..8_900_003], &contents[1][5..400_005]);
            assert_eq!((&buffer[8_900_003..], progress.into_inner()), (&[0; 7][..], 8_900_000));
        }
    }

    #[test]
    fn bad_pieces_and_short_files_are_errors() {
        let files = files(&[vec![1; 100]]);
        let read = |pieces: &[(usize, u64, usize, usize)]| {
            let piece = |&(file, file_offset_bytes, buffer_offset_bytes, bytes)| ReadPiece {
                file,
                file_offset_bytes,
                buffer_offset_bytes,
                bytes,
            };
            let pieces: Vec<ReadPiece> = pieces.iter().map(piece).collect();
            read_pieces(&files, &pieces, &mut [0; 50], 2, &AtomicU64::new(0))
        };
        read(&[(0, 0, 0, 50)]).unwrap();
        assert!(matches!(read(&[(0, 0, 0, 51)]), Err(DeviceError::ReadPiece { .. })));
        assert!(matches!(read(&[(0, 0, 0, 10), (0, 0, 9, 10)]), Err(DeviceError::ReadPiece { .. })));
        assert!(matches!(read(&[(1, 0, 0, 10)]), Err(DeviceError::ReadPiece { .. })));
        assert!(matches!(read(&[(0, u64::MAX, 0, 10)]), Err(DeviceError::ReadPiece { .. })));
        assert!(matches!(read(&[(0, 0, usize::MAX, 10)]), Err(DeviceError::ReadPiece { .. })));
        assert!(matches!(read(&[(0, 95, 0, 10)]), Err(DeviceError::FileRead { offset_bytes: 95, .. })));
    }

    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, SysRoot) {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let root = SysRoot::new(folder.path());
        (folder, root)
    }

    #[test]
    fn the_least_of_machine_and_group_is_usable() {
        const MEMINFO: &str = "MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:  1000 kB\n";
        let cases = [
            (vec![], 1_024_000, None),
            (vec![("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")], 1_024_000, None),
            (vec![("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "4096\n")], 4096, Some(4096)),
            (vec![("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/memory.max", "4096\n")], 4096, Some(4096)),
            (
                vec![
                    ("proc/self/cgroup", "4:memory:/x\n0::/\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n"),
                ],
                8192,
                Some(8192),
            ),
        ];
        for (mut files, usable, limit) in cases {
            files.push(("proc/meminfo", MEMINFO));
            let (_folder, root) = root(&files);
            let info = HostMemoryInfo::read(&root).unwrap();
            assert_eq!((info.usable_bytes(), info.cgroup_limit_bytes), (usable, limit), "{files:?}");
            assert_eq!(info.total_bytes, 2_048_000);
        }
    }

    #[test]
    fn odd_memory_figures_are_named() {
        for content in ["", "MemTotal: 5 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n"] {
            let (_folder, root) = root(&[("proc/meminfo", content)]);
            assert!(matches!(HostMemoryInfo::read(&root), Err(DeviceError::SystemFileContent { .. })), "{content}");
        }
        let (_folder, root) = root(&[]);
        assert!(matches!(HostMemoryInfo::read(&root), Err(DeviceError::SystemFile { .. })));
    }
}
