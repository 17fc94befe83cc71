//! What executes operators: the CPU team, CUDA, the simulated GPU, clocks, probes.
