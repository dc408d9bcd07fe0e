"""Depthwise causal convolution over time, followed by SiLU; no bias.

y_t = silu(sum_j weight[:, j] * x_{t - W + 1 + j}). The carried state is the last W - 1 raw inputs.
"""

from pallas_kernels.causal_conv.xla import decode, prefill

__all__ = ["decode", "prefill"]
