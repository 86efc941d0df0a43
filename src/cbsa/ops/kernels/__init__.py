"""Triton kernels: contract-and-broadcast (``cbsa.ops.fused``) and pooling (``cbsa.ops.fused_pooling``)."""
