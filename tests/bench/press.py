"""Clients that press a daemon, and a watch over the files that it writes meanwhile."""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from state.tiers.format import BLOCK_BYTES, LIVE_PREFIX, PARTIAL_SUFFIX, whole_blocks
from state.tiers.scan import is_stamp
from tests.bench.talks import TIMEOUT_S, AnswerError, Ask, Told, ask

CLIENTS = 6
_SAMPLE_S = 0.1


class Press:
    """Clients that ask at random until they are told to stop or nobody answers."""

    def __init__(
        self,
        url: str,
        asks: Sequence[Ask],
        cold: Mapping[tuple[int, int], Told],
        seed: str,
        clients: int = CLIENTS,
    ) -> None:
        self._url = url
        self._asks = asks
        self._cold = cold
        self._seed = seed
        self._stop = threading.Event()
        self.draining = False
        self.tiers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._client, args=(number,)) for number in range(clients)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the last answers, or for their absence."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_S) as client:
            while not self._stop.is_set():
                one = rng.choice(self._asks)
                try:
                    answer = ask(client, one)
                except httpx.TransportError:
                    return
                except AnswerError as error:
                    if not self.draining:
                        self.wrong.append(str(error))
                    return
                if answer.said != self._cold[one.talk, one.turn].said:
                    self.wrong.append(
                        f"talk {one.talk}, turn {one.turn}: another answer than the cold one after "
                        f"{answer.cached} of {answer.prompt} tokens from {answer.tier}"
                    )
                self.tiers[answer.tier or "none"] += 1


class Watch:
    """Adds up what the files take, ten times a second."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stop = threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.most_bytes = max(self.most_bytes, bytes_of(self._root))


def state_files(root: Path) -> Iterator[Path]:
    """Every file of the tier, whole or not."""
    for folder in root.iterdir() if root.is_dir() else ():
        if is_stamp(folder.name):
            yield from folder.iterdir()


def bytes_of(root: Path) -> int:
    """What the files take, as the ledger counts."""
    total = 0
    for path in state_files(root):
        try:
            told = path.stat()
        except FileNotFoundError:
            continue
        # One that is being written has a hole where its header goes, or blocks beyond its end.
        total += max(whole_blocks(told.st_size), told.st_blocks * 512 // BLOCK_BYTES * BLOCK_BYTES)
    return total


def strays(root: Path) -> list[Path]:
    """Files that must not outlive a start."""
    return [
        path
        for path in state_files(root)
        if path.name.endswith(PARTIAL_SUFFIX) or path.name.startswith(LIVE_PREFIX)
    ]
