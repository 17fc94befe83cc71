//! The operators' mathematics on CPU and GPU: scalar oracles, SIMD, CUDA sources, one op table.
