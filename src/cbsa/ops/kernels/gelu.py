"""GELU and its derivative, for kernels that have it in passing."""

import triton
import triton.language as tl


@triton.jit
def normal_tail(x):
    """Φ(−|x|) and exp(−x²/2), by Abramowitz and Stegun's 7.1.26: to 1e-7, cheaper than the library's erf."""
    z = tl.abs(x) * 0.7071067811865476
    root = tl.rsqrt(1.0 + 0.3275911 * z)
    t = root * root
    bell = tl.exp2(-0.7213475204444817 * x * x)
    # half of 7.1.26's coefficients
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t
    return tail * bell, bell


@triton.jit
def gelu(x):
    """GELU, x·Φ(x)."""
    tail, _ = normal_tail(x)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail


@triton.jit
def gelu_slope(x):
    """Derivative of GELU, Φ(x) + x·φ(x)."""
    tail, bell = normal_tail(x)
    return tl.where(x > 0, 1.0 - tail, tail) + 0.3989422804014327 * x * bell
