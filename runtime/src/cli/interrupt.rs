//! Ctrl-C: while a text is generated, the first asks to stop and the second leaves at once; at any other time the first
//! leaves. A thread waits for the signal, so nothing runs inside a signal handler. Not here: who asks
//! (`generation.rs`).

use shared_cli::Failure;
use shared_cli::failure::INTERRUPTED;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const ASKED: u8 = 2;

/// What Ctrl-C does at present.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Takes over the signal for the rest of the program.
    pub fn install() -> Result<Self, Failure> {
        Self::watch().map_err(|error| Failure::failed(anyhow::Error::new(error).context("cannot watch for Ctrl-C")))
    }

    fn watch() -> std::io::Result<Self> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let mut signals = Signals::new([SIGINT])?;
        let interrupt = Interrupt(Arc::clone(&state));
        let wait = move || {
            for _ in signals.forever() {
                if state.compare_exchange(BUSY, ASKED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    leave();
                }
            }
        };
        std::thread::Builder::new().name("interrupt".into()).spawn(wait)?;
        Ok(interrupt)
    }

    /// From now on the first Ctrl-C only asks.
    pub fn begin(&self) {
        self.0.store(BUSY, Ordering::SeqCst);
    }

    /// Whether it did.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst) == ASKED
    }

    /// From now on Ctrl-C leaves.
    pub fn end(&self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }
}

/// Leaves at once. The text may have been dimmed; the main thread may hold standard output.
fn leave() {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        // There is nobody left to tell if it fails.
        let _ = err.write_all(b"\x1b[0m\n");
    }
    signal_hook::low_level::exit(i32::from(INTERRUPTED));
}
