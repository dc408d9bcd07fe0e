"""The weights of Qwen3.5 dense models (3.6 and 3.8 have the same classes), listed once.

Loading, random initialisation and the memory plan all walk the tree that `abstract` returns.

Letters in the shapes: V vocabulary, H hidden, I feed-forward width, d head width, Hk and Hv key and
value heads of delta-rule layers, dk and dv their widths, C convolution channels
(2·Hk·dk + Hv·dv). Matrices are [out, in], as checkpoints hold them.
"""

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ignisd.errors import ConfigError
from ignisd.model.spec import LayerKind, ModelSpec
from ignisd.model.weight_spec import Params, Role, WeightSpec

MATRIX_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))
_VECTOR_DTYPE = np.dtype(np.float32)


class _Namer:
    """Makes the weights below one name prefix; matrices in one type, vectors in float32."""

    def __init__(self, prefix: str, dtype: DTypeLike) -> None:
        self._prefix = prefix
        self._dtype = jnp.dtype(dtype)

    def matrix(self, name: str, rows: int, columns: int, role: Role = Role.MATRIX) -> WeightSpec:
        shape = (rows, columns)
        return WeightSpec(shape, self._dtype, f"{self._prefix}{name}.weight", shape, role)

    def vector(self, name: str, size: int, role: Role) -> WeightSpec:
        return WeightSpec((size,), _VECTOR_DTYPE, f"{self._prefix}{name}", (size,), role)

    def conv(self, name: str, channels: int, width: int) -> WeightSpec:
        source = f"{self._prefix}{name}.weight"
        return WeightSpec((channels, width), _VECTOR_DTYPE, source, (channels, 1, width), Role.CONV)


def abstract(spec: ModelSpec, dtype: DTypeLike = jnp.bfloat16) -> Params:
    """The params-shaped tree of `WeightSpec` for `spec`.

    Args:
        dtype: what matrices are held in, bfloat16 or float32. Vectors, the convolution included,
            are always float32.

    Raises:
        ConfigError: `dtype` is neither of the two.
    """
    if jnp.dtype(dtype) not in MATRIX_DTYPES:
        names = " or ".join(str(allowed) for allowed in MATRIX_DTYPES)
        raise ConfigError(f"weights cannot be held as {jnp.dtype(dtype)}, wanted {names}")
    top = _Namer("model.", dtype)
    params: Params = {
        "embed": top.matrix("embed_tokens", spec.vocab_size, spec.hidden_size, Role.EMBEDDING),
        "norm": top.vector("norm.weight", spec.hidden_size, Role.NORM),
        "layers": tuple(
            _layer(spec, kind, _Namer(f"model.layers.{layer}.", dtype))
            for layer, kind in enumerate(spec.layer_kinds)
        ),
    }
    if not spec.tied:
        params["head"] = _Namer("", dtype).matrix("lm_head", spec.vocab_size, spec.hidden_size)
    return params


def _layer(spec: ModelSpec, kind: LayerKind, name: _Namer) -> Params:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    mixer = _linear(spec, name) if kind is LayerKind.LINEAR else _full(spec, name)
    return {
        "norm_in": name.vector("input_layernorm.weight", hidden, Role.NORM),
        "norm_post": name.vector("post_attention_layernorm.weight", hidden, Role.NORM),
        "gate": name.matrix("mlp.gate_proj", inner, hidden),
        "up": name.matrix("mlp.up_proj", inner, hidden),
        "down": name.matrix("mlp.down_proj", hidden, inner),
        **mixer,
    }


def _full(spec: ModelSpec, name: _Namer) -> Params:
    """Softmax attention. Each head's rows of `q` are its query, then its output gate."""
    hidden, width = spec.hidden_size, spec.head_dim
    return {
        "q": name.matrix("self_attn.q_proj", spec.num_heads * 2 * width, hidden),
        "k": name.matrix("self_attn.k_proj", spec.num_kv_heads * width, hidden),
        "v": name.matrix("self_attn.v_proj", spec.num_kv_heads * width, hidden),
        "o": name.matrix("self_attn.o_proj", hidden, spec.num_heads * width),
        "q_norm": name.vector("self_attn.q_norm.weight", width, Role.NORM),
        "k_norm": name.vector("self_attn.k_norm.weight", width, Role.NORM),
    }


def _linear(spec: ModelSpec, name: _Namer) -> Params:
    """The gated delta rule. Rows of `qkv` are all queries, all keys, all values."""
    hidden, heads = spec.hidden_size, spec.linear_value_heads
    return {
        "qkv": name.matrix("linear_attn.in_proj_qkv", spec.conv_channels, hidden),
        "z": name.matrix("linear_attn.in_proj_z", spec.value_width, hidden),
        "b": name.matrix("linear_attn.in_proj_b", heads, hidden),
        "a": name.matrix("linear_attn.in_proj_a", heads, hidden),
        "conv": name.conv("linear_attn.conv1d", spec.conv_channels, spec.conv_width),
        "norm": name.vector("linear_attn.norm.weight", spec.linear_value_dim, Role.SCALE),
        "out": name.matrix("linear_attn.out_proj", hidden, spec.value_width),
        "a_log": name.vector("linear_attn.A_log", heads, Role.A_LOG),
        "dt_bias": name.vector("linear_attn.dt_bias", heads, Role.DT_BIAS),
    }
