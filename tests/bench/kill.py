"""kill -9 at random points under load, and what the next start makes of the files that are left.

usage: python -m tests.bench.kill FOLDER [--kills N] [--disk roomy|small|ext4] [--seed N]

Conversations of both classes press a daemon with a tiny pool, arena and disk, so that files are
written and read all the time. It is killed at a random moment: amid the load, while it writes out
what it retains after SIGTERM, and in between also while it starts. Each answer is held against the
cold one. After each start no unfinished file and none of a live sequence may be left, every file
must verify (`ignisd inspect`), none may be damaged, and at no time may the files take more than
their ceiling. On a disk that is `small` a planted limit refuses what is beyond it; `ext4` is a
file system of its own in an image, for which one must be root. On both, somebody else takes and
gives back most of the room all the time.

What happened is kept in FOLDER: a run that was broken off goes on where it stood. Ends with status
1 if anything was wrong.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from state.tiers.format import LIVE_PREFIX, PARTIAL_SUFFIX, SUFFIX
from tests.bench.press import Press, Watch, state_files, strays
from tests.bench.room import Others, Room, free_of, mounted
from tests.bench.talks import EVERYTHING_PAYS, SHAPE, Ask, Told, cold_answers
from tests.daemon.running import Daemon, running

ROOMY, SMALL, EXT4 = "roomy", "small", "ext4"
CEILING_BYTES = 12 << 20
ROOM_BYTES = 24 << 20
"""Of a disk that is not roomy, where the ceiling lies beyond it."""
_DELAY_MS = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Args:
        kills: under load; in addition every fifth start is killed.
        disk: roomy, small or ext4.
        talks, turns: how many conversations, and how long.
        most_s: the longest that the load runs.
        flags: for the daemon, in addition.
    """

    kills: int = 50
    disk: str = ROOMY
    seed: int = 1
    talks: int = 12
    turns: int = 4
    most_s: float = 4.0
    flags: tuple[str, ...] = ()

    @property
    def ceiling_bytes(self) -> int:
        """Most bytes of files."""
        return CEILING_BYTES if self.disk == ROOMY else 2 * ROOM_BYTES

    @property
    def asks(self) -> list[Ask]:
        """Every request that there is."""
        return [
            Ask(f"kill {self.seed}", talk, turn, cls="agent" if talk % 3 == 0 else "interactive")
            for talk in range(self.talks)
            for turn in range(self.turns)
        ]


@dataclass(slots=True)
class Life:
    """One run of the daemon, from its start to its end.

    Args:
        killed: when: `load`, `drain` or `start`.
        after_s: how long after that had begun.
        slow: whether every change of a file took its time, so that it was likely amid one.
        found: unfinished and live files that lay there before the start.
        adopted: files that the start took over.
        answers: that came and were the cold ones.
        tiers: where they were resumed from.
        most_bytes: that the files took at most.
        wrong: everything that should not have been.
    """

    number: int
    killed: str
    after_s: float
    slow: bool
    found: int = 0
    adopted: int = 0
    answers: int = 0
    tiers: dict[str, int] = field(default_factory=dict)
    most_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


class Bench:
    """Lives one after the other in one folder.

    Args:
        folder: for everything; what it holds of an earlier run is gone on with.
        say: told of each life.
        program: the module that is the daemon, and words before its flags.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        say: Callable[[str], None],
        program: tuple[str, ...] = ("ignisd",),
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.root = folder / "disk" / "kv"
        self._say = say
        self._program = program
        self._log = folder / "lives.jsonl"
        self._cold: dict[tuple[int, int], Told] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the daemon."""
        return (
            *SHAPE,
            *EVERYTHING_PAYS,
            *("--reuse-kv-host-pool-bytes", "3M", "--reuse-window-bytes", "128K"),
            *("--kv-disk-path", str(self.root), "--kv-disk-bytes", str(self.plan.ceiling_bytes)),
            *self.plan.flags,
        )

    def program(self, life: Life) -> tuple[str, ...]:
        """What Python runs."""
        room_bytes = ROOM_BYTES if self.plan.disk == SMALL else 0
        disk = (str(self.folder / "disk"), str(room_bytes), str(_DELAY_MS if life.slow else 0))
        return ("-m", "tests.bench.room", *disk, *self._program)

    def run(self) -> list[Life]:
        """Every life that is left."""
        lives = self._past()
        rng = random.Random(f"{self.plan.seed} {len(lives)}")
        with self._disk():
            while sum(life.killed != "start" for life in lives) < self.plan.kills:
                killed = "start" if len(lives) % 6 == 5 else rng.choice(("load",) * 4 + ("drain",))
                after_s = rng.uniform(0.0, self.plan.most_s)
                slow = len(lives) % 2 == 1
                life = self.life(Life(len(lives), killed, round(after_s, 3), slow))
                lives.append(life)
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(asdict(life)) + "\n")
                self._say(_line(life))
        return lives

    def life(self, life: Life) -> Life:
        """Start, press, kill."""
        life.found = len(strays(self.root))
        self._litter()
        if life.killed == "start":
            self._killed_starting(life)
            return life
        with running(self.folder, *self.flags, program=self.program(life)) as daemon:
            self._began(life, daemon)
            if not self._cold:
                self._cold = cold_answers(daemon.url, self.plan.asks)
            press = Press(daemon.url, self.plan.asks, self._cold, f"{self.plan.seed} {life.number}")
            with Watch(self.root) as watch:
                press.start()
                time.sleep(life.after_s)
                if life.killed == "drain":
                    press.draining = True
                    daemon.process.send_signal(signal.SIGTERM)
                    time.sleep(random.Random(life.number).uniform(0.0, 1.0))
                daemon.process.kill()
                daemon.process.wait()
                press.stop()
        life.wrong += press.wrong
        life.tiers = dict(press.tiers)
        life.answers = press.tiers.total()
        life.most_bytes = watch.most_bytes
        if watch.most_bytes > self.plan.ceiling_bytes:
            life.wrong.append(f"{watch.most_bytes} bytes of files, over the ceiling")
        log = daemon.log.read_text()
        if "Traceback" in log.split(" draining ")[0]:
            life.wrong.append(f"a traceback in its log:\n{log[-3000:]}")
        return life

    def _litter(self) -> None:
        """What a crash may leave beside what this one did: half a file, and a live sequence's."""
        whole = next((path for path in state_files(self.root) if path.name[0] != "l"), None)
        if whole is not None:
            raw = whole.read_bytes()
            with suppress(OSError):  # on a full disk there may be less of it
                whole.with_name(f"{LIVE_PREFIX}999999{SUFFIX}").write_bytes(raw)
                half = whole.with_name(f"{'0' * 32}-64{SUFFIX}{PARTIAL_SUFFIX}")
                half.write_bytes(raw[: len(raw) // 2])

    def _killed_starting(self, life: Life) -> None:
        command = [sys.executable, *self.program(life), "--server-bind", "127.0.0.1:0", *self.flags]
        with (self.folder / "start.log").open("wb") as sink:
            process = subprocess.Popen(
                command, stdout=sink, stderr=sink, env={**os.environ, "JAX_PLATFORMS": "cpu"}
            )
        time.sleep(2.0 * life.after_s)
        process.kill()
        process.wait()

    def _began(self, life: Life, daemon: Daemon) -> None:
        """What the start has made of the files."""
        left = strays(self.root)
        if left:
            life.wrong.append(f"left after the start: {[path.name for path in left]}")
        told = re.search(
            r" kv_disk path=.* adopted=(\d+) .* damaged=(\d+) ", daemon.log.read_text()
        )
        assert told is not None, daemon.log.read_text()
        life.adopted = int(told[1])
        if int(told[2]):
            life.wrong.append(f"{told[2]} files are damaged")
        command = [sys.executable, "-m", "ignisd", "inspect", str(self.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            life.wrong.append(f"ignisd inspect ends with {done.returncode}:\n{done.stdout}")

    def _past(self) -> list[Life]:
        """What an earlier run has done."""
        if not self._log.exists():
            return []
        return [Life(**json.loads(line)) for line in self._log.read_text().splitlines()]

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """The disk, with somebody else on it where it is not roomy."""
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        with ExitStack() as held:
            if self.plan.disk == EXT4:
                held.enter_context(mounted(self.folder / "image", disk, ROOM_BYTES))
                held.enter_context(Others(disk, lambda: free_of(disk)))
            elif self.plan.disk == SMALL:
                held.enter_context(Others(disk, Room(disk, ROOM_BYTES).free))
            yield


def _line(life: Life) -> str:
    tiers = ", ".join(f"{name} {count}" for name, count in sorted(life.tiers.items()))
    speed = "slow" if life.slow else ""
    text = (
        f"{life.number:3d}  {life.killed:5s} {life.after_s:5.2f} s  {speed:4s}  "
        f"strays before {life.found:2d}  adopted {life.adopted:3d}  "
        f"answers {life.answers:4d} ({tiers})  {life.most_bytes / 2**20:5.1f} MiB"
    )
    return "\n".join([text, *(f"    FAILED: {wrong}" for wrong in life.wrong)])


def report(lives: Sequence[Life], plan: Plan) -> int:
    """What all lives come to; the exit status."""
    tiers: Counter[str] = Counter()
    for life in lives:
        tiers.update(life.tiers)
    killed = Counter(life.killed for life in lives)
    wrong = [f"life {life.number}: {text}" for life in lives for text in life.wrong]
    told = ", ".join(f"{count} from {name}" for name, count in sorted(tiers.items()))
    print(
        f"\n{len(lives)} lives on a {plan.disk} disk, killed "
        f"{', '.join(f'{count} x amid the {name}' for name, count in killed.items())}\n"
        f"{sum(tiers.values())} answers, each compared with the cold one: {told}\n"
        f"{sum(life.found for life in lives)} unfinished or live files found by "
        f"{sum(life.found > 0 for life in lives)} starts, "
        f"{sum(life.adopted for life in lives)} files adopted and verified\n"
        f"files took {max(life.most_bytes for life in lives) / 2**20:.1f} MiB at most, of "
        f"{plan.ceiling_bytes / 2**20:.1f}"
    )
    print("\n".join(f"FAILED: {text}" for text in wrong) or "nothing was wrong")
    return 1 if wrong else 0


def main() -> int:
    """Read the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--disk", choices=(ROOMY, SMALL, EXT4), default=ROOMY)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mounts-are-private", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.disk == EXT4 and not arguments.mounts_are_private:
        # Whatever becomes of this process, its mounts go with it.
        command = [sys.executable, "-m", "tests.bench.kill", *sys.argv[1:], "--mounts-are-private"]
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", *command])
    plan = Plan(kills=arguments.kills, disk=arguments.disk, seed=arguments.seed)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lives = Bench(arguments.folder, plan, lambda text: print(text, flush=True)).run()
    return report(lives, plan)


if __name__ == "__main__":
    sys.exit(main())
