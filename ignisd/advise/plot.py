"""Draws what settings retain against what they save; matplotlib does it and is an extra."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ignisd.advise.sweep import Row
from ignisd.errors import ConfigError


def draw(rows: Sequence[Row], best: Row, path: Path) -> None:
    """A picture of the trade.

    Raises:
        ConfigError: there is no matplotlib, or the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'ignisd[plot]'.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    saved, waits = figure.subplots(1, 2)
    sizes = [row.retained_bytes / (1 << 20) for row in rows]
    saved.scatter(sizes, [row.saved_ms / 1000 for row in rows])
    waits.scatter(sizes, [row.ttft_ms for row in rows])
    for row, size in zip(rows, sizes, strict=True):
        label = str(row.setting.interval_tokens)
        saved.annotate(label, (size, row.saved_ms / 1000))
        waits.annotate(label, (size, row.ttft_ms))
    at = best.retained_bytes / (1 << 20)
    saved.scatter([at], [best.saved_ms / 1000], marker="*", s=160, label="recommended")
    waits.scatter([at], [best.ttft_ms], marker="*", s=160)
    saved.set(xlabel="retained MiB", ylabel="prefill saved, s", title="by interval in tokens")
    waits.set(xlabel="retained MiB", ylabel="mean time to first token, ms")
    saved.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}") from None
