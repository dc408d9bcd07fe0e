"""Causal attention of a chunk of queries over the pages of its sequence.

Query tile i is page `first_page + i` of the sequence; its keys are pages 0 … first_page + i,
already written to the pool.
"""

from pallas_kernels.paged_attention_prefill.xla import paged_attention_prefill

__all__ = ["paged_attention_prefill"]
