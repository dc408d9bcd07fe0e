"""The gated delta rule over a chunk of tokens, in the 64-token chunk form.

Per value head, with decay a_t = exp(log_decay_t), S the state [dk, dv]:
S <- a S;  delta = beta (v - S^T k);  S <- S + k delta^T;  o = S^T q.
"""

from pallas_kernels.gated_delta_prefill.xla import gated_delta_prefill

__all__ = ["gated_delta_prefill"]
