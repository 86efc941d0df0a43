"""Triton kernels of contract-and-broadcast; ``cbsa.ops.fused`` launches them."""
