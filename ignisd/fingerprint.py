"""What the bits of retained state depend on, as one stamp: model, formats, build and machine."""

import os
from importlib.metadata import version
from pathlib import Path

import jax
from blake3 import blake3

from ignisd import __version__
from ignisd.model.forward import ForwardSpec
from ignisd.planning import Planned
from state.spec import PAGE_TOKENS, Fingerprint

_LAYOUT_VERSION = 2
_CPU_INFO = Path("/proc/cpuinfo")


def fingerprint_of(planned: Planned, spec: ForwardSpec, *, across_starts: bool) -> Fingerprint:
    """The stamp of everything that is retained of a model.

    Args:
        planned: the model and its folder.
        spec: how it is run.
        across_starts: whether state outlives the process, so that the weights themselves must be
            the same; otherwise their names and sizes do.
    """
    return Fingerprint.of(
        layout=_LAYOUT_VERSION,
        page_tokens=PAGE_TOKENS,
        model=planned.name,
        weights=content_of(planned.folder) if across_starts else "",
        spec=spec,
        chunk_tokens=planned.sizes.chunk_tokens,
        num_lanes=planned.sizes.num_lanes,
        build=__version__,
        jaxlib=version("jaxlib"),
        backend=jax.default_backend(),
        device=jax.devices()[0].device_kind,
        processors=os.cpu_count(),
        features=_cpu_features() if jax.default_backend() == "cpu" else "",
    )


def content_of(folder: Path) -> str:
    """A digest of the files of a checkpoint that decide what it computes."""
    whole = blake3()
    names = [path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".json")]
    for name in sorted(names):
        hasher = blake3(max_threads=blake3.AUTO)
        hasher.update_mmap(folder / name)
        whole.update(name.encode() + b"\0" + hasher.digest())
    return whole.hexdigest()


def _cpu_features() -> str:
    """What the processor can do, which decides the code that the compiler makes for it."""
    if not _CPU_INFO.is_file():
        return ""
    lines = _CPU_INFO.read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return " ".join(sorted(flags.partition(":")[2].split()))
