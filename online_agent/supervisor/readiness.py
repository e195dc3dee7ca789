"""How a process says that it is ready, and how the supervisor asks: a small file that names the process id.

A file rather than a port, because the learner and the worker listen on none. A stale file of an earlier process names
another id and does not count.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from online_agent.config.settings import Settings

_PROBE_TIMEOUT_S = 2.0


def announce_ready(settings: Settings, process: str) -> None:
    """This process can do its work from now on."""
    path = ready_file(settings.data_dir, process)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(f"{os.getpid()}\n")
    temporary.rename(path)


def has_announced(data_dir: Path, process: str, pid: int) -> bool:
    try:
        return ready_file(data_dir, process).read_text().strip() == str(pid)
    except FileNotFoundError:
        return False


def answers_http(host: str, port: int, path: str) -> bool:
    """Whether a GET answers 200 now. Plain ``http.client``: a probe should cost nothing."""
    connection = HTTPConnection(host, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def ready_file(data_dir: Path, process: str) -> Path:
    return data_dir / "run" / f"{process}.ready"
