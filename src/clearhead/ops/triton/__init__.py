"""Backend `triton`: fused kernels for CUDA."""
