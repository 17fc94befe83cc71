//! A word that threads wait on: spin first, sleep in the kernel after, no wake-up call unless somebody sleeps.
//!
//! Bit 0 ([`SLEEP`]) is owned by this file; the upper 31 bits belong to the user. Sleepers and publishers agree through
//! read-modify-writes of this one word, so no store-load fence is needed: a publisher either sees `SLEEP` and wakes, or
//! its new value makes the sleeper's compare fail. Next: `barrier.rs`, which builds on it.

use crate::sync::{Futex, Ordering, spin};

/// Somebody sleeps (or is about to) and must be woken when the word changes.
pub const SLEEP: u32 = 1;

/// See the module text.
#[derive(Debug, Default)]
pub struct WaitWord(Futex);

impl WaitWord {
    /// The user's bits, with what the publisher wrote before them visible.
    pub fn load(&self) -> u32 {
        self.0.word().load(Ordering::Acquire) & !SLEEP
    }

    /// Sets the user's bits without waking anybody. Only while no thread waits.
    pub fn reset(&self, bits: u32) {
        debug_assert_eq!(bits & SLEEP, 0);
        self.0.word().store(bits, Ordering::Release);
    }

    /// Replaces the user's bits by `next(bits)`, publishes all earlier writes, wakes sleepers. Returns the new bits.
    pub fn publish(&self, next: impl Fn(u32) -> u32) -> u32 {
        self.publish_quietly(next, |_| true)
    }

    /// Like [`publish`](Self::publish), but sleepers sleep on unless `wakes(new bits)`.
    pub fn publish_quietly(&self, next: impl Fn(u32) -> u32, wakes: impl Fn(u32) -> bool) -> u32 {
        let word = self.0.word();
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let bits = next(old & !SLEEP);
            let wake = wakes(bits);
            let new = if wake { bits } else { bits | (old & SLEEP) };
            match word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if wake && old & SLEEP != 0 {
                        self.0.wake_all();
                    }
                    return bits;
                }
                Err(seen) => old = seen,
            }
        }
    }

    /// Publishes `next(bits)` only if somebody sleeps.
    pub fn publish_to_sleepers(&self, next: impl Fn(u32) -> u32) {
        if self.0.word().load(Ordering::Relaxed) & SLEEP != 0 {
            self.publish(next);
        }
    }

    /// Waits until `ready(bits)`; returns those bits. Spins up to `spin_ns`, then sleeps.
    pub fn wait_until(&self, spin_ns: u32, ready: impl Fn(u32) -> bool) -> u32 {
        let mut bits = 0;
        if spin(spin_ns, || {
            bits = self.load();
            ready(bits)
        }) {
            return bits;
        }
        self.sleep_until(ready)
    }

    #[cold]
    fn sleep_until(&self, ready: impl Fn(u32) -> bool) -> u32 {
        let word = self.0.word();
        let mut old = word.load(Ordering::Acquire);
        loop {
            if ready(old & !SLEEP) {
                return old & !SLEEP;
            }
            if old & SLEEP == 0 {
                match word.compare_exchange_weak(old, old | SLEEP, Ordering::Acquire, Ordering::Acquire) {
                    Ok(_) => {}
                    Err(seen) => {
                        old = seen;
                        continue;
                    }
                }
            }
            self.0.wait(old | SLEEP);
            old = word.load(Ordering::Acquire);
        }
    }
}
