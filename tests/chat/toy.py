"""A tokenizer and a model small enough to see through: one token a byte, and a few merged ones."""

from datetime import UTC, datetime

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from ignisd.chat.checkpoint import ModelInfo
from ignisd.chat.template import ChatTemplate, PromptRenderer
from ignisd.chat.tokenizer import ChatTokenizer
from ignisd.chat.types import GenerationDefaults, SamplingFields

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ċ", "Ċ"))

TEMPLATE = """\
{%- if messages[0].role == 'system' or tools %}
{{- '<|im_start|>system\\n' }}
{%- for tool in tools or [] %}{{- tool | tojson ~ '\\n' }}{% endfor %}
{{- messages[0].content if messages[0].role == 'system' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not loop.first %}{{- raise_exception('only the first message may be system') }}{% endif %}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' ~ message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' ~ message.role ~ '\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' ~ call.function.name ~ call.function.arguments | tojson ~ '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{% endif %}
"""

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def _byte_chars() -> list[str]:
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printing else chr(next(spare)) for byte in range(256)]


def raw_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are the bytes themselves; then the merged tokens, then the added ones."""
    vocabulary = {char: byte for byte, char in enumerate(_byte_chars())}
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.decoder = decoders.ByteLevel()
    split = pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\S+|\s+"), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in PLAIN])
    return tokenizer


def toy_tokenizer() -> ChatTokenizer:
    return ChatTokenizer(raw_tokenizer())


def toy_model(
    context_tokens: int = 4096, defaults: SamplingFields | None = None, name: str = "toy"
) -> ModelInfo:
    tokenizer = toy_tokenizer()
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    return ModelInfo(
        name=name,
        context_tokens=context_tokens,
        tokenizer=tokenizer,
        renderer=PromptRenderer(ChatTemplate(TEMPLATE, lambda: NOON), tokenizer),
        defaults=GenerationDefaults(defaults or SamplingFields(), (end,)),
        created_s=1_700_000_000,
    )
