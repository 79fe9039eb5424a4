"""Process groups on accelerators: NCCL for CUDA, oneCCL (XCCL) for Intel's XPU, or any made by a user's function."""
