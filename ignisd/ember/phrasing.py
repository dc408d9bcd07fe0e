"""How people put things: openers, joined sentences, hasty typing."""

import random

_LOWERABLE = frozenset(
    "My The What Who Where When Which How Do Can At On Remember Our You People To In Yesterday "
    "Last This They We A".split()
)


def decapitalised(text: str) -> str:
    """The text as it goes on in the middle of a sentence: names and `I` keep their capital."""
    first = text.split(" ", 1)[0].rstrip(",.?!").split("'")[0]
    return text[0].lower() + text[1:] if first in _LOWERABLE else text


def joined(rng: random.Random, parts: list[str]) -> str:
    """Sentences after each other, or joined by `and` and commas."""
    if len(parts) > 1 and rng.random() < 0.35:
        first, *others = (part.rstrip(".") for part in parts)
        return f"{listed([first, *map(decapitalised, others)])}."
    return " ".join(parts)


def typed(rng: random.Random, text: str) -> str:
    """The text as hasty people type it: now and then without the last sign or first capital."""
    if rng.random() < 0.1:
        text = text.rstrip(".?!")
    return decapitalised(text) if rng.random() < 0.1 else text


def opened(rng: random.Random, openers: tuple[str, ...], text: str) -> str:
    """The text, sometimes after an opener."""
    if rng.random() < 0.75 or not text[0].isupper():
        return typed(rng, text)
    return rng.choice(openers) + decapitalised(text)


def listed(parts: list[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
