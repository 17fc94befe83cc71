//! Memory that the workers of a round share: plain bytes, read and written in pieces through typed windows.
//!
//! This is the executor's only `unsafe` memory: bounds are always checked, exclusion is the steps' contract (SSA
//! values, disjoint row or panel ranges, barriers between steps). Not here: what lies where (`step.rs`).

use bytemuck::Pod;
use device::memory::HostRegion;
use kernels::cpu::matmul::Output;
use kernels::cpu::ops::{View, ViewMut};
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

/// Regions from this size on are of huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A cache line, so that regions start aligned for every vector width.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "read and written through typed windows")] [u8; 64]);

/// A region of shared memory, zeroed at first.
pub struct Shared {
    start: *mut u8,
    size_bytes: usize,
    /// Owns the memory, or keeps its owner alive.
    _keeper: Keeper,
}

/// What keeps a region's memory.
enum Keeper {
    Lines { _lines: Box<[UnsafeCell<Line>]> },
    Region { _region: HostRegion },
    Other { _owner: Arc<dyn Any + Send + Sync> },
}

// SAFETY: the memory is the keeper's, wherever the region goes.
unsafe impl Send for Shared {}
// SAFETY: access goes through views and slices, whose contracts exclude data races.
unsafe impl Sync for Shared {}

/// A matrix in a region: `[rows, cols]` of a value whose rows are `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte offset of row 0, column 0 of the value that is viewed.
    pub base_bytes: usize,
    /// Byte offset of row 0, column 0 of the view.
    pub offset_bytes: usize,
    /// Elements (4 bytes each) from row to row.
    pub stride: usize,
    /// Columns of the view.
    pub cols: usize,
    /// In whose memory.
    pub home: Home,
}

/// In whose memory a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// One for all workers.
    Shared,
    /// Each worker has its own copy, which it computes itself: see `solo.rs`.
    Own,
}

impl Place {
    /// A region's rows of `cols` columns one after the other.
    pub fn rows_of(cols: usize) -> Place {
        Place { base_bytes: 0, offset_bytes: 0, stride: cols, cols, home: Home::Shared }
    }

    /// The columns `cols` of this view.
    pub fn col_range(self, cols: Range<usize>) -> Place {
        debug_assert!(cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        Place { offset_bytes: self.offset_bytes + cols.start * 4, cols: cols.len(), ..self }
    }
}

impl Shared {
    /// A zeroed region of at least `size_bytes`. A large one takes its pages, huge ones, as they are first touched:
    /// caches for a whole context would else cost a tenth of a second and their full size at once.
    pub fn new(size_bytes: usize) -> Self {
        if size_bytes >= HUGE_PAGE_BYTES
            && let Ok(mut region) = HostRegion::new(size_bytes.next_multiple_of(64))
        {
            let (start, size_bytes) = (region.as_mut_slice().as_mut_ptr(), region.len());
            return Self { start, size_bytes, _keeper: Keeper::Region { _region: region } };
        }
        let lines = (0..size_bytes.div_ceil(64)).map(|_| UnsafeCell::new(Line([0; 64])));
        let lines: Box<[UnsafeCell<Line>]> = lines.collect();
        let (start, size_bytes) = (lines.as_ptr().cast_mut().cast(), lines.len() * 64);
        Self { start, size_bytes, _keeper: Keeper::Lines { _lines: lines } }
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// `start` is aligned to 64 bytes, and `size_bytes` initialised bytes there may be read and written as long as
    /// `owner` lives, by the rules of this type.
    pub unsafe fn of(start: *mut u8, size_bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, size_bytes, _keeper: Keeper::Other { _owner: owner } }
    }

    fn start(&self) -> *mut u8 {
        self.start
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    #[track_caller]
    fn check<T>(&self, offset_bytes: usize, len: usize) {
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset_bytes));
        assert!(end.is_some_and(|end| end <= self.size_bytes()), "{len} elements at {offset_bytes} leave the region");
        assert!(offset_bytes.is_multiple_of(align_of::<T>()), "offset {offset_bytes} is not aligned");
    }

    /// `len` elements from a byte offset.
    ///
    /// # Safety
    /// No one writes to them while the slice lives.
    #[track_caller]
    pub unsafe fn slice<T: Pod>(&self, offset_bytes: usize, len: usize) -> &[T] {
        self.check::<T>(offset_bytes, len);
        // SAFETY: in bounds and aligned (checked), initialised; no writer by this function's contract.
        unsafe { std::slice::from_raw_parts(self.start().add(offset_bytes).cast(), len) }
    }

    /// `len` elements from a byte offset, writable.
    ///
    /// # Safety
    /// No one else reads or writes them while the slice lives.
    #[track_caller]
    #[expect(clippy::mut_from_ref, reason = "the region is shared; exclusion is the caller's contract")]
    pub unsafe fn slice_mut<T: Pod>(&self, offset_bytes: usize, len: usize) -> &mut [T] {
        self.check::<T>(offset_bytes, len);
        // SAFETY: in bounds and aligned (checked), initialised; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(offset_bytes).cast(), len) }
    }

    /// Rows `rows` of a place.
    ///
    /// # Safety
    /// No one writes to them while the view lives.
    #[track_caller]
    pub unsafe fn view<T: Pod>(&self, place: Place, rows: Range<usize>) -> View<'_, T> {
        let first = self.first_element::<T>(place, &rows);
        // SAFETY: all rows are in bounds (checked by `first_element`); no writer by this function's contract.
        unsafe { View::from_raw(first.cast_const(), rows.len(), place.cols, place.stride) }
    }

    /// Rows `rows` of a place, writable.
    ///
    /// # Safety
    /// No one else reads or writes them while the view lives.
    #[track_caller]
    pub unsafe fn view_mut<T: Pod>(&self, place: Place, rows: Range<usize>) -> ViewMut<'_, T> {
        let first = self.first_element::<T>(place, &rows);
        // SAFETY: all rows are in bounds (checked by `first_element`); exclusive by this function's contract.
        unsafe { ViewMut::from_raw(first, rows.len(), place.cols, place.stride) }
    }

    /// The whole region as rows of `cols` elements.
    ///
    /// # Safety
    /// No one writes the rows that are read through the view.
    pub unsafe fn matrix<T: Pod>(&self, cols: usize) -> View<'_, T> {
        let rows = self.size_bytes() / size_of::<T>() / cols;
        // SAFETY: rows · cols elements are in bounds; no writer by this function's contract.
        unsafe { View::from_raw(self.start().cast_const().cast(), rows, cols, cols) }
    }

    /// The whole region as rows of `cols` elements, writable row by row.
    ///
    /// # Safety
    /// No one else touches the rows that are written through the view.
    pub unsafe fn matrix_mut<T: Pod>(&self, cols: usize) -> ViewMut<'_, T> {
        let rows = self.size_bytes() / size_of::<T>() / cols;
        // SAFETY: rows · cols elements are in bounds; exclusive by this function's contract.
        unsafe { ViewMut::from_raw(self.start().cast(), rows, cols, cols) }
    }

    /// Where a product writes rows `rows` of a place.
    ///
    /// # Safety
    /// No one reads or writes the columns that the product writes while it does.
    pub unsafe fn output(&self, place: Place, rows: Range<usize>) -> Output<'_> {
        let first = self.first_element::<f32>(place, &rows);
        let len = if rows.is_empty() { 0 } else { (rows.len() - 1) * place.stride + place.cols };
        // SAFETY: in bounds (checked by `first_element`); exclusive by this function's contract.
        unsafe { Output::from_raw(first, len, place.stride) }
    }

    #[track_caller]
    fn first_element<T: Pod>(&self, place: Place, rows: &Range<usize>) -> *mut T {
        assert!(size_of::<T>() == 4, "values have elements of 4 bytes");
        let offset = place.offset_bytes + rows.start * place.stride * 4;
        let reach = if rows.is_empty() { 0 } else { (rows.len() - 1) * place.stride + place.cols };
        self.check::<T>(offset.min(self.size_bytes()), reach);
        // SAFETY: the offset is within the region (checked).
        unsafe { self.start().add(offset.min(self.size_bytes())).cast() }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} bytes)", self.size_bytes())
    }
}
