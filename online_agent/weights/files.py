"""Files that are on disk when the call returns, and directories that one process works on at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from online_agent.errors import StorageFull

_READ_ONLY = 0o444
_FULL = (errno.ENOSPC, errno.EDQUOT)


def fsync_path(path: Path) -> None:
    """The file's content, or the directory's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Every file and directory below ``root``, and ``root`` itself, is on disk."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            fsync_path(Path(directory, name))
        fsync_path(Path(directory))


def write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def relative_files(root: Path) -> list[str]:
    """The files below ``root``, as sorted relative paths."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


def make_read_only(root: Path) -> None:
    """A published file is shared by hard links: writing into one would change several versions."""
    for name in relative_files(root):
        (root / name).chmod(_READ_ONLY)


def link_or_copy(source: Path, target: Path) -> None:
    """``target`` has the content of ``source``, sharing its blocks where the file system allows."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _FULL:
            raise
        shutil.copyfile(source, target)


@contextmanager
def exclusive_directory(path: Path) -> Iterator[bool]:
    """True while this process alone works on the directory; the kernel lets go when the process dies.

    The lock is on the directory itself, so it survives a rename.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def storage_full_named(what: str) -> Iterator[None]:
    """A full disk raises StorageFull naming ``what``, whichever library met it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"no space left while writing {what}") from error
        raise
    except SafetensorError as error:
        if f"os error {errno.ENOSPC}" in str(error) or "No space left" in str(error):
            raise StorageFull(f"no space left while writing {what}") from error
        raise
