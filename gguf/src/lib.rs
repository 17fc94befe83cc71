//! The GGUF container: bounds-checked zero-copy reader, splits, writer, block layouts.
