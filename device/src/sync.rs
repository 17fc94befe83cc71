//! The primitives below the thread team: atomics, a futex word, thread start. Under `cfg(loom)` they are loom's, so
//! that
//! `tests/loom.rs` explores the interleavings of the very code that ships.
//!
//! Not a general synchronisation library: only `team/` uses it. Next: `team/word.rs`.

#[cfg(loom)]
pub use loom_impl::*;
#[cfg(not(loom))]
pub use std_impl::*;

/// Keeps its content on cache lines of its own. 128 bytes: x86-64 prefetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(not(loom))]
mod std_impl {
    use std::cell::UnsafeCell;
    pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use rustix::thread::futex;

    /// A handle to a started thread.
    pub type JoinHandle = std::thread::JoinHandle<()>;

    /// Starts a named thread. Errors: the operating system refuses another thread.
    pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle> {
        std::thread::Builder::new().name(name).spawn(body)
    }

    /// A 32-bit atomic on which threads can sleep in the kernel.
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// The word, for loads and read-modify-writes.
        pub fn word(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the word equals `expected`; may return early for no reason.
        pub fn wait(&self, expected: u32) {
            // An interrupted or refused wait is a spurious wake-up: every caller looks at the word again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, expected, None);
        }

        /// Wakes every sleeper. Call it after the word has changed.
        pub fn wake_all(&self) {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Polls between two looks at the clock: the first look must not tax a barrier that completes at once.
    const POLLS_PER_CLOCK: u32 = 32;

    /// Polls `done` for up to `budget_ns`. Returns whether it came true; a zero budget polls once.
    pub fn spin(budget_ns: u32, mut done: impl FnMut() -> bool) -> bool {
        if done() {
            return true;
        }
        if budget_ns == 0 {
            return false;
        }
        let mut deadline = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                std::hint::spin_loop();
                if done() {
                    return true;
                }
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + Duration::from_nanos(u64::from(budget_ns)));
            if now >= deadline {
                return false;
            }
        }
    }

    /// A cell whose exclusive access the caller proves.
    #[derive(Debug, Default)]
    pub struct SharedCell<T>(UnsafeCell<T>);

    impl<T> SharedCell<T> {
        /// Wraps a value.
        pub fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Reads through a pointer that is valid during `read` as long as nobody writes.
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Writes through a pointer that is valid during `write` as long as nobody else reads or writes.
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(loom)]
mod loom_impl {
    use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};

    /// A handle to a modelled thread.
    pub type JoinHandle = loom::thread::JoinHandle<()>;

    /// Starts a modelled thread; the name is dropped.
    pub fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle> {
        Ok(loom::thread::spawn(body))
    }

    /// The futex as the kernel defines it: compare and sleep are one step with respect to a wake-up.
    #[derive(Debug)]
    pub struct Futex {
        word: AtomicU32,
        bucket: Mutex<()>,
        queue: Condvar,
    }

    impl Default for Futex {
        fn default() -> Self {
            Self { word: AtomicU32::new(0), bucket: Mutex::new(()), queue: Condvar::new() }
        }
    }

    impl Futex {
        /// The word.
        pub fn word(&self) -> &AtomicU32 {
            &self.word
        }

        /// Sleeps while the word equals `expected`.
        pub fn wait(&self, expected: u32) {
            let bucket = self.bucket.lock().unwrap_or_else(|broken| broken.into_inner());
            if self.word.load(Ordering::SeqCst) == expected {
                drop(self.queue.wait(bucket));
            }
        }

        /// Wakes every sleeper.
        pub fn wake_all(&self) {
            let _bucket = self.bucket.lock().unwrap_or_else(|broken| broken.into_inner());
            self.queue.notify_all();
        }
    }

    /// Never polls: the sleep's own first look is a poll, and more of them explode loom's search.
    pub fn spin(_budget_ns: u32, _done: impl FnMut() -> bool) -> bool {
        false
    }

    /// A cell whose exclusive access loom checks.
    #[derive(Debug)]
    pub struct SharedCell<T>(UnsafeCell<T>);

    impl<T> SharedCell<T> {
        /// Wraps a value.
        pub fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Reads.
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            self.0.with(read)
        }

        /// Writes.
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(write)
        }
    }
}
