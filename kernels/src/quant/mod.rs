//! What the bytes of a weight tensor mean: block layouts of each ggml type and exact dequantisation.
//!
//! Not here: products with weights (`cpu/matmul`), the file that holds the bytes (crate `gguf`).
