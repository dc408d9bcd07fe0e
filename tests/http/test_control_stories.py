"""Stories of the control plane that need no fixture: planted faults are shown to these."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.http import test_retained_tiers as retained
from tests.http import test_tier_metrics as metrics

Story = Callable[[Path], Coroutine[Any, Any, None]]


def told(story: Story) -> None:
    """A story over files of its own."""
    with TemporaryDirectory(prefix="ignisd-story-") as folder:
        asyncio.run(story(Path(folder)))


def test_what_is_listed_lies_there() -> None:
    told(retained.test_states_of_every_tier_are_listed_with_what_they_take)


def test_what_is_flushed_is_gone() -> None:
    told(retained.test_a_flush_leaves_nothing_in_any_tier_and_no_file)


def test_what_is_flushed_of_files_is_gone() -> None:
    told(lambda folder: retained.test_a_flush_of_one_tier_leaves_the_others(folder, "kv_disk"))


def test_what_is_explained_then_happens() -> None:
    told(lambda folder: retained.test_an_explanation_tells_the_restore(folder, "kv_disk"))


def test_what_is_counted_is_what_was_told() -> None:
    told(metrics.test_prompt_tokens_by_source_are_the_sums_of_the_answers)
