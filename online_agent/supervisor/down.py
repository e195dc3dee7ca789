"""Stops a running supervisor from another process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from online_agent.errors import Conflict
from online_agent.supervisor.lock import running_pid

_POLL_S = 0.2


def stop(data_dir: Path, timeout_s: float) -> int | None:
    """The process id of the supervisor that has ended, None when none ran. Raises Conflict when it still drains."""
    pid = running_pid(data_dir)
    if pid is None:
        return None
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while running_pid(data_dir) == pid:
        if time.monotonic() > deadline:
            raise Conflict(f"process {pid} still drains after {timeout_s:g} s; a second signal would end it at once")
        time.sleep(_POLL_S)
    return pid
