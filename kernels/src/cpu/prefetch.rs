//! Asking for memory before it is needed. Not here: the products' own prefetching of what they read next (`arch`).

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Starts bringing `bytes` into this core's second-level cache. A hint: no result depends on it.
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        prefetch_line(line.as_ptr());
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: SSE belongs to every x86-64 processor, and a prefetch of any address is harmless.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_: *const u8) {}
