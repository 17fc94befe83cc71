//! Strided windows on row-major matrices: the operands of every operator.
//!
//! A view covers some rows and some columns of a larger buffer and touches no byte outside its window, so that
//! threads can work on disjoint windows of one buffer at the same time. Not here: arithmetic. Next: `simd.rs`.

use std::marker::PhantomData;
use std::ops::Range;

/// Read-only window `[rows, cols]` of a row-major matrix whose rows are `stride` elements apart.
#[derive(Debug)]
pub struct View<'a, T = f32> {
    first: *const T,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'a [T]>,
}

/// Writable window `[rows, cols]` of a row-major matrix whose rows are `stride` elements apart.
#[derive(Debug)]
pub struct ViewMut<'a, T = f32> {
    first: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

// SAFETY: a view is a shared slice with gaps; it may go where `&[T]` may.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for View<'_, T> {}
// SAFETY: a mutable view is an exclusive slice with gaps; it may go where `&mut [T]` may.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}

/// Panics unless a window of this shape fits in `len` elements.
#[track_caller]
fn check_shape(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(cols <= stride, "a row of {cols} columns does not fit in a row stride of {stride}");
    let needed = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(cols));
    assert!(needed.is_some_and(|n| n <= len), "{rows} rows of {cols} columns, stride {stride}: only {len} elements");
}

impl<'a, T> View<'a, T> {
    /// The whole of `data` as `[rows, cols]`, rows contiguous.
    ///
    /// # Panics
    /// When `data` is shorter than `rows · cols`.
    #[track_caller]
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// The first `cols` columns of `rows` rows that are `stride` elements apart.
    ///
    /// # Panics
    /// When the window does not fit in `data`.
    #[track_caller]
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Self {
        check_shape(data.len(), rows, cols, stride);
        Self { first: data.as_ptr(), rows, cols, stride, lifetime: PhantomData }
    }

    /// A window that starts at `first`.
    ///
    /// # Safety
    /// - for every row r < `rows`, `cols` elements from `first + r · stride` are initialised, and nobody writes them
    ///   during `'a`; other columns may be written meanwhile.
    pub unsafe fn from_raw(first: *const T, rows: usize, cols: usize, stride: usize) -> Self {
        debug_assert!(cols <= stride);
        Self { first, rows, cols, stride, lifetime: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `index`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row(&self, index: usize) -> &'a [T] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the constructors guarantee `cols` readable elements in each row below `rows`.
        unsafe { std::slice::from_raw_parts(self.first.add(index * self.stride), self.cols) }
    }

    /// The rows in `range`, all columns.
    #[track_caller]
    pub fn row_range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let first = self.first.wrapping_add(range.start * self.stride);
        Self { first, rows: range.len(), ..self }
    }

    /// The columns in `range`, all rows.
    #[track_caller]
    pub fn col_range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        Self { first: self.first.wrapping_add(range.start), cols: range.len(), ..self }
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// The whole of `data` as `[rows, cols]`, rows contiguous.
    ///
    /// # Panics
    /// When `data` is shorter than `rows · cols`.
    #[track_caller]
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// The first `cols` columns of `rows` rows that are `stride` elements apart.
    ///
    /// # Panics
    /// When the window does not fit in `data`.
    #[track_caller]
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Self {
        check_shape(data.len(), rows, cols, stride);
        Self { first: data.as_mut_ptr(), rows, cols, stride, lifetime: PhantomData }
    }

    /// A window that starts at `first`.
    ///
    /// # Safety
    /// - for every row r < `rows`, `cols` elements from `first + r · stride` are initialised, and nobody else reads or
    ///   writes them during `'a`; other columns may be used meanwhile.
    pub unsafe fn from_raw(first: *mut T, rows: usize, cols: usize, stride: usize) -> Self {
        debug_assert!(cols <= stride);
        Self { first, rows, cols, stride, lifetime: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `index`.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the constructors guarantee `cols` exclusive elements in each row below `rows`.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(index * self.stride), self.cols) }
    }

    /// A shorter-lived view of the same window.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { first: self.first, rows: self.rows, cols: self.cols, stride: self.stride, lifetime: PhantomData }
    }

    /// The window, read-only.
    pub fn as_view(&self) -> View<'_, T> {
        View { first: self.first, rows: self.rows, cols: self.cols, stride: self.stride, lifetime: PhantomData }
    }

    /// The rows in `range`, all columns.
    #[track_caller]
    pub fn row_range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let first = self.first.wrapping_add(range.start * self.stride);
        Self { first, rows: range.len(), ..self }
    }

    /// The columns in `range`, all rows.
    #[track_caller]
    pub fn col_range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        Self { first: self.first.wrapping_add(range.start), cols: range.len(), ..self }
    }

    /// The columns before `col` and the others, as two views that may go to two threads.
    #[track_caller]
    pub fn split_at_col(self, col: usize) -> (Self, Self) {
        assert!(col <= self.cols, "column {col} of {}", self.cols);
        let right = Self { first: self.first.wrapping_add(col), cols: self.cols - col, ..self };
        (Self { cols: col, ..self }, right)
    }

    /// The rows before `row` and the others, as two views that may go to two threads.
    #[track_caller]
    pub fn split_at_row(self, row: usize) -> (Self, Self) {
        assert!(row <= self.rows, "row {row} of {}", self.rows);
        let lower = Self { first: self.first.wrapping_add(row * self.stride), rows: self.rows - row, ..self };
        (Self { rows: row, ..self }, lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_address_the_right_elements() {
        let data: Vec<i32> = (0..12).collect();
        let all = View::new(&data, 3, 4);
        assert_eq!(all.row(2), [8, 9, 10, 11]);
        let inner = all.row_range(1..3).col_range(1..3);
        assert_eq!((inner.row(0), inner.row(1)), (&[5, 6][..], &[9, 10][..]));
    }

    #[test]
    fn split_windows_are_disjoint() {
        let mut data = vec![0; 12];
        let (mut left, mut right) = ViewMut::new(&mut data, 3, 4).split_at_col(1);
        left.row_mut(1).fill(1);
        right.row_mut(1).fill(2);
        let (mut upper, _) = right.split_at_row(1);
        upper.row_mut(0).fill(3);
        assert_eq!(data, [0, 3, 3, 3, 1, 2, 2, 2, 0, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "only 11 elements")]
    fn a_window_beyond_the_buffer_is_refused() {
        View::new(&[0u8; 11], 3, 4);
    }
}
