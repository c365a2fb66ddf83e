"""Kernels in CUDA C++ for GPUs of compute capability 9.0."""
