"""One daemon for the clients, on the embedded model. The clients are imported where they are used:
only their extras install them."""

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Daemon, running


@pytest.fixture(scope="package", autouse=True)
def leftovers(monkeypatch_package: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients leave connections to the garbage collector, which warns; it is put up with here."""
    monkeypatch_package.setattr(sys, "unraisablehook", lambda _: None)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="package")
def monkeypatch_package() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("clients")
    cache = str(Path.cwd() / ".pytest_cache" / "ignisd")
    with running(folder, "--check", "on", "--compile-cache-dir", cache) as started:
        yield started
        assert "Traceback" not in started.log.read_text()
