"""Reads the tensors of a checkpoint folder: one safetensors file, or shards with an index.

A safetensors file is an 8-byte little-endian header length, a JSON header that gives each tensor's
type, shape and byte range, and the bytes (https://github.com/huggingface/safetensors). Files are
mapped, never read whole; a tensor costs memory only while it is looked at.
"""

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ignisd.errors import ConfigError
from ignisd.model.spec import read_json

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# The format's own ceiling on a header; a larger length means that this is another kind of file.
MAX_HEADER_BYTES = 100_000_000

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies. `start` and `end` count bytes from the start of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.end - self.start


def list_tensors(directory: Path) -> dict[str, Entry]:
    """Every tensor of the checkpoint in `directory`, by name; only headers are read.

    Raises:
        ConfigError: no checkpoint there, a broken or truncated file, an index that does not agree
            with its shards.
    """
    if (directory / SINGLE_NAME).exists():
        return _read_header(directory / SINGLE_NAME)
    if not (directory / INDEX_NAME).exists():
        raise ConfigError(f"{directory} holds neither {SINGLE_NAME} nor {INDEX_NAME}")
    placed = _weight_map(directory)
    headers = {file: _read_header(directory / file) for file in sorted(set(placed.values()))}
    for name, file in placed.items():
        if name not in headers[file]:
            raise ConfigError(f"{INDEX_NAME} places {name} in {file}, which does not hold it")
    return {name: headers[file][name] for name, file in placed.items()}


def _weight_map(directory: Path) -> dict[str, str]:
    """The index's tensor name to file name; every file name is a plain one, inside the folder."""
    placed = read_json(directory / INDEX_NAME).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ConfigError(f"{directory / INDEX_NAME} has no weight_map")
    for name, file in placed.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ConfigError(f"{INDEX_NAME} places {name} in {file!r}, wanted a plain file name")
    return placed


def _read_header(path: Path) -> dict[str, Entry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            lead = file.read(8)
            length = int.from_bytes(lead, "little")
            if len(lead) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ConfigError(
                    f"{path} is truncated or no safetensors file: it has {size} bytes and "
                    f"announces a header of {length}"
                )
            text = file.read(length)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        header = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} has a header that is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path} has a header that is no object")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, raw, 8 + length) for name, raw in header.items()}
    wanted = max((entry.end for entry in entries.values()), default=8 + length)
    if size < wanted:
        raise ConfigError(f"{path} is truncated: it has {size} bytes, its header wants {wanted}")
    return entries


def _entry(path: Path, name: str, raw: object, base: int) -> Entry:
    """One header entry, checked; offsets in the header count from `base`."""
    match raw:
        case {
            "dtype": str(dtype),
            "shape": [*shape],
            "data_offsets": [int(start), int(end)],
        } if all(isinstance(size, int) and size >= 0 for size in shape) and 0 <= start <= end:
            pass
        case _:
            raise ConfigError(f"{path}: the header entry of {name} is malformed: {raw!r:.200}")
    known = DTYPES.get(dtype)
    wanted = end - start if known is None else math.prod(shape) * known.itemsize
    if end - start != wanted:
        raise ConfigError(
            f"{path}: {name} of shape {shape} in {dtype} wants {wanted} bytes, has {end - start}"
        )
    return Entry(path, name, dtype, tuple(shape), base + start, base + end)


class TensorReader:
    """Maps files on demand and gives read-only views of tensors.

    A file stays mapped while the reader or one of its views is alive.
    """

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def view(self, entry: Entry) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor as it lies in the file.

        Raises:
            ConfigError: the type is not one of `DTYPES`, or the file cannot be mapped.
        """
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            raise ConfigError(
                f"{entry.name} is stored as {entry.dtype}; this build reads {', '.join(DTYPES)}"
            )
        if entry.num_bytes == 0:
            return np.empty(entry.shape, dtype)
        if entry.file not in self._maps:
            try:
                with entry.file.open("rb") as file:
                    self._maps[entry.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise ConfigError(f"{entry.file} cannot be mapped: {error}") from error
        count = math.prod(entry.shape)
        flat = np.frombuffer(self._maps[entry.file], dtype, count, entry.start)
        return flat.reshape(entry.shape)
