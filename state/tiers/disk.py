"""The system calls of the disk tier, one method each, so that a test can make any of them fail.

Nothing here decides or retries anything. Every method blocks and may raise OSError.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Space:
    """What a file system holds, in bytes; `free` is what this user may take of it."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A file or folder in a directory.

    Args:
        path: where it is.
        is_file: whether it is a plain file.
        num_bytes: how long it is.
        changed_ms: wall clock at its last change.
    """

    path: Path
    is_file: bool
    num_bytes: int
    changed_ms: float


class Disk:
    """The file system as the disk tier sees it.

    Attributes:
        names: whether files may still get their names.
    """

    names: bool = True

    def make_directory(self, path: Path) -> None:
        """A directory that only its owner can enter, with those above it, which outlasts a loss
        of power."""
        if not path.is_dir():
            path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            self.sync_directory(path.parent)

    def restrict(self, path: Path) -> None:
        """Take a directory away from everybody but its owner."""
        if path.stat().st_mode & 0o777 != DIRECTORY_MODE:
            path.chmod(DIRECTORY_MODE)

    def entries(self, path: Path) -> Iterator[Listed]:
        """What lies in a directory, in no order. Links are not followed."""
        with os.scandir(path) as listing:
            for entry in listing:
                found = entry.stat(follow_symlinks=False)
                is_file = entry.is_file(follow_symlinks=False)
                yield Listed(Path(entry.path), is_file, found.st_size, 1e3 * found.st_mtime)

    def open_new(self, path: Path, *, direct: bool) -> int:
        """Create a file, or empty the one that is there, for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags | os.O_DIRECT * direct, FILE_MODE)

    def open_old(self, path: Path, *, direct: bool) -> int:
        """Open a file for reading."""
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECT * direct)

    def go_through_cache(self, fd: int) -> None:
        """Give up direct I/O on an open file."""
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)

    def close(self, fd: int) -> None:
        """Close a file; what was written and not synced may still be lost."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """How long an open file is, in bytes."""
        return os.fstat(fd).st_size

    def write(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Write parts one after the other; how many bytes were taken, perhaps not all."""
        return os.pwritev(fd, parts, offset)

    def read(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Fill parts one after the other; how many bytes came, 0 at the end of the file."""
        return os.preadv(fd, parts, offset)

    def sync_data(self, fd: int) -> None:
        """Wait until the bytes of a file are on the medium."""
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        """Wait until a file, with all that describes it, is on the medium."""
        os.fsync(fd)

    def forget(self, fd: int) -> None:
        """Let the cache drop what it holds of a file, which nobody will read soon."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def stop_naming(self) -> None:
        """From now on no file gets its name: what is being written is not to be found again."""
        self.names = False

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in the place of one that has it."""
        if not self.names:
            raise OSError(errno.ECANCELED, "files get no names any more", str(new))
        old.replace(new)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the medium."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is as good."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory in which nothing is left."""
        path.rmdir()

    def space(self, path: Path) -> Space:
        """What the file system of a path holds."""
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: Path) -> int | None:
        """An open file that keeps every other process from locking it; None when one has it.

        The lock ends with the file or the process, however that ends.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd
