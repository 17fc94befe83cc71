//! What goes wrong in a round while its workers must keep meeting at barriers. Next: `run.rs`.

use crate::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose poison does not matter: the data are working memory without invariants.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first failure of a round.
#[derive(Default)]
pub struct Failure {
    error: Mutex<Option<Error>>,
    is_noted: AtomicBool,
}

impl Failure {
    /// Notes an error, if it is one, and that the round is to end at the next barrier. Worker 0 only.
    pub fn note(&self, outcome: Result<(), Error>) {
        if outcome.is_err() {
            self.note_later(outcome);
            self.is_noted.store(true, Ordering::Release);
        }
    }

    /// Notes an error without an end to the round: workers must keep meeting at barriers.
    pub fn note_later(&self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            lock(&self.error).get_or_insert(error);
        }
    }

    /// Whether the round is to end.
    pub fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Acquire)
    }

    /// The failure as the round's result.
    pub fn into_result(self) -> Result<(), Error> {
        self.error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
