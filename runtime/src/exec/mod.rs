//! The executor: runs a program's operators on the CPU team over preallocated memory. It knows operators, not families.
//!
//! `prepare` resolves a program once into steps (`step.rs`: places in memory, matrices, parameters); a round then walks
//! the steps on every worker (`run.rs`, `walk.rs`). Invariants: a round allocates nothing; between two barriers no
//! worker touches what another writes; a token's result has the same bits for any batch, ubatch and number of threads.
//! Not here: which tokens to run (`session.rs`), where items live (the plan). Next: `shared.rs`, `step.rs`.

mod ahead;
mod attention;
mod barriers;
pub(crate) mod choices;
mod experts;
pub(crate) mod failure;
mod follow;
mod light;
mod pairs;
pub(crate) mod prepare;
mod product;
mod recurrent;
mod round;
pub(crate) mod run;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod solo;
pub(crate) mod states;
pub(crate) mod step;
pub(crate) mod terms;
pub(crate) mod trace;
mod walk;
mod watch;
pub(crate) mod weights;

pub use choices::{Choices, Chosen, Flip};
pub use prepare::Limits;
pub(crate) use product::Grain;
pub use round::{Round, Span};
pub use run::Executor;
pub use states::{KvType, Rewind, Ring, StateSnapshot};
pub use weights::{HostPlace, Precision, WeightStore};
