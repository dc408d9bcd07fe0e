"""A target that is ready to be measured: it can be given prompts of a wanted length.

Texts are drawn from common words with a seed. Nobody has seen them unless the seed was used
before; that no server resumes them is checked where it tells.
"""

import random
from dataclasses import dataclass

from ignisd.bench.target import Answer, BenchError, Chat, Target, user

_WORDS = """
    about above again air almost always animal answer apple arm autumn back bank bell bird black
    board boat book bottle bread bridge brother build butter candle carry chair change child city
    clean clear clock cloud coat cold corner country cover cross dance daughter dinner door dress
    drink early earth east evening eye father field finger fire floor flower follow forest friend
    garden glass gold grass green ground half hand happy heart hill history horse hour house island
    kitchen lake language laugh leaf letter light line listen little market milk minute money month
    moon morning mother mountain music night north number ocean open orange paper party people
    picture plate pocket quiet rain reach remember ring river road roof room round salt school
    second shadow ship shoe silver sister sleep slow small snow song south spring stone story
    street strong sugar summer table teach tell thing train tree village voice wait walk wall
    warm watch water week west white window winter wood word work world year yellow
""".split()
_SHORT_WORDS, _LONG_WORDS = 40, 240
_PROBE_WORDS = 600


def text_of(seed: str, num_words: int) -> str:
    """Sentences of twelve words; the same seed begins the same way whatever the length."""
    drawn = random.Random(seed)
    words = [drawn.choice(_WORDS) for _ in range(num_words)]
    for last in range(11, num_words, 12):
        words[last] += "."
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Contender:
    """A target, how many tokens it makes of a word, and whether it can be asked to answer cold.

    Args:
        target: who answers.
        tokens_per_word: in long texts.
        answers_cold: `reuse: false` was seen to be kept.
    """

    target: Target
    tokens_per_word: float
    answers_cold: bool

    @property
    def name(self) -> str:
        """As in the tables."""
        return self.target.name

    def text(self, seed: str, num_tokens: int) -> str:
        """A text of about so many tokens."""
        return text_of(seed, max(1, round(num_tokens / self.tokens_per_word)))


def prepare(target: Target, seed: str) -> Contender:
    """Measure the target's tokens, and see whether it keeps `reuse: false`.

    A server that resumes a prompt only when asked for the third time is met too.

    Raises:
        BenchError: the target does not answer, or does not count tokens.
    """
    lengths = {}
    for num_words in (_SHORT_WORDS, _LONG_WORDS):
        chat = (user(text_of(f"{seed} words", num_words)),)
        lengths[num_words] = target.ask(chat, 1, reuse=False).prompt_tokens
    per_word = (lengths[_LONG_WORDS] - lengths[_SHORT_WORDS]) / (_LONG_WORDS - _SHORT_WORDS)
    if per_word <= 0:
        raise BenchError(
            f"{target.name} counts {lengths[_SHORT_WORDS]} prompt tokens for {_SHORT_WORDS} words "
            f"and {lengths[_LONG_WORDS]} for {_LONG_WORDS}; usage.prompt_tokens is needed"
        )
    return Contender(target, per_word, _keeps_cold(target, f"{seed} probe"))


def _keeps_cold(target: Target, seed: str) -> bool:
    chat: Chat = (user(text_of(seed, _PROBE_WORDS)),)
    for _ in range(3):
        warm = target.ask(chat, 1)
        if warm.cached_tokens:
            return target.ask(chat, 1, reuse=False).cached_tokens == 0
    return False


def require_new(contender: Contender, case: str, answer: Answer) -> None:
    """Refuse a prompt that the target had seen.

    Raises:
        BenchError: more than a tenth of it was resumed.
    """
    cached = answer.cached_tokens or 0
    if cached * 10 > answer.prompt_tokens:
        raise BenchError(
            f"{contender.name} resumed {cached} of {answer.prompt_tokens} tokens of a prompt that "
            f"was meant to be new ({case}); give another --seed"
        )
