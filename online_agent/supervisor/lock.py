"""One supervisor per data directory: an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from online_agent.errors import Conflict


class DataDirLock:
    """Holds ``<data_dir>/run/supervisor.pid`` locked while open. Raises Conflict when another process holds it."""

    def __init__(self, data_dir: Path) -> None:
        self.path = pid_file(data_dir)
        self._descriptor = -1

    def __enter__(self) -> DataDirLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            holder = self.path.read_text().strip() or "unknown"
            raise Conflict(f"{self.path.parent.parent} is already run by process {holder}") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def pid_file(data_dir: Path) -> Path:
    return data_dir / "run" / "supervisor.pid"


def running_pid(data_dir: Path) -> int | None:
    """The process that holds the lock, or None when nothing runs there."""
    path = pid_file(data_dir)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = path.read_text().strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None
