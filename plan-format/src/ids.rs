//! Newtypes for the indices into a program's flat tables. An id is an index, never a count or a size.
//! Next: `program.rs`, whose tables they index.

use serde::{Deserialize, Serialize};

macro_rules! index_types {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as `usize`, for indexing the table it belongs to.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

index_types! {
    /// Index into [`crate::program::Program::tensors`].
    TensorId,
    /// Index into [`crate::program::Program::weights`].
    WeightId,
    /// Index into [`crate::program::Program::values`].
    ValueId,
    /// Index into [`crate::program::Program::ops`].
    OpId,
    /// Index into [`crate::program::Program::items`].
    ItemId,
    /// Index into [`crate::program::Program::states`].
    StateId,
    /// Index into [`crate::program::Program::ropes`].
    RopeId,
    /// Index into [`crate::schedule::Slots::slots`].
    SlotId,
    /// Index into the artifact's list of schedules.
    ScheduleId,
}
