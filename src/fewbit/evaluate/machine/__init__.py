"""The axes of the machine: speed, memory, kernels and numerics."""
