"""The models that this daemon knows: the one it was started with, and those of --models-dir."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ignisd.chat.asked import AGENT_SUFFIX
from ignisd.errors import ConfigError
from ignisd.planning import find_model


@dataclass(frozen=True, slots=True)
class Known:
    """A model that can be loaded.

    Args:
        name: as clients call it.
        setting: as --model would name it.
    """

    name: str
    setting: str


class Catalog:
    """Finds models by the names that clients use.

    The folder is looked through anew each time, so that a model may be added while serving. Only a
    name that is listed is ever loaded: a client's word is no path.

    Args:
        setting: the value of --model.
        models_dir: holds one folder a model; None where there is only the one.

    Raises:
        ConfigError: there is no such model, or no such folder.
    """

    def __init__(self, setting: str, models_dir: Path | None) -> None:
        name, _ = find_model(setting, models_dir)
        self.first = Known(name, setting)
        self._models_dir = models_dir
        try:
            list(self._listed())
        except OSError as error:
            raise ConfigError(f"--models-dir cannot be listed: {error}") from error

    def known(self) -> tuple[Known, ...]:
        """All models, the one that the daemon was started with before the others."""
        others: list[Known] = []
        with contextlib.suppress(OSError):  # the folder has gone since the start
            others += [one for one in self._listed() if one.name != self.first.name]
        return (self.first, *others)

    def find(self, name: str) -> Known | None:
        """A model by its name; None where none is called so."""
        return next((one for one in self.known() if one.name == name), None)

    def _listed(self) -> Iterator[Known]:
        if self._models_dir is None:
            return
        for folder in sorted(self._models_dir.iterdir()):
            if _can_be_asked_for(folder.name) and (folder / "config.json").is_file():
                yield Known(folder.name, folder.name)


def _can_be_asked_for(name: str) -> bool:
    """Whether a request can carry a folder's name: text, not hidden, no class at its end."""
    return name.isprintable() and not name.startswith(".") and not name.endswith(AGENT_SUFFIX)
