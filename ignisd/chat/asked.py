"""The fields that all requests share, checked."""

from ignisd.chat.limits import RANGES, check_range, check_sampling, check_stop
from ignisd.chat.types import Asked, SamplingFields
from ignisd.chat.wire import WireAsked
from ignisd.errors import RequestError, UnsupportedValue
from state.spec import Class

AGENT_SUFFIX = "@agent"
"""A model name that ends so asks for the class `agent`."""


def read_asked(wire: WireAsked, max_tokens: int | None) -> Asked:
    """What a body asks for beside its prompt.

    Args:
        wire: the body.
        max_tokens: what its protocol makes of its limits.

    Raises:
        RequestError: a field is out of range.
        UnsupportedValue: a field asks for something that is not done here.
    """
    sampling = SamplingFields(*(getattr(wire, name) for name in SamplingFields.__slots__))
    check_sampling(sampling)
    check_range("n", wire.n, RANGES["n"])
    if wire.logit_bias:
        raise UnsupportedValue(
            f"logit_bias has {len(wire.logit_bias)} entries, but none can be honoured.",
            "logit_bias",
        )
    model, cls = _model_and_class(wire.model, wire.class_name)
    options = wire.stream_options
    return Asked(
        model=model,
        sampling=sampling,
        max_tokens=max_tokens,
        stop=check_stop(wire.stop),
        ignore_eos=bool(wire.ignore_eos),
        n=1 if wire.n is None else wire.n,
        stream=bool(wire.stream),
        include_usage=options is not None and bool(options.include_usage),
        cls=cls,
        reuse=wire.reuse is not False,
        return_reuse=bool(wire.return_reuse),
        cache_salt=wire.cache_salt,
    )


def _model_and_class(model: str | None, named: str | None) -> tuple[str | None, Class]:
    """The model's name without its suffix, and the class asked for by either."""
    if named is not None and named not in tuple(Class):
        raise RequestError(f"class is {named!r}, but must be one of {', '.join(Class)}.", "class")
    if model is not None and model.endswith(AGENT_SUFFIX):
        return model.removesuffix(AGENT_SUFFIX) or None, Class(named or Class.AGENT)
    return model, Class(named or Class.INTERACTIVE)
