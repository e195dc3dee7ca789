"""No process outlives the one that started it: the kernel kills it when its parent dies, however that died."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn``. Start the child from a thread that lives on: the kernel counts the thread, not the process."""
    parent_pid = os.getpid()

    def set_death_signal() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # the parent died between fork and prctl
            os._exit(1)

    return set_death_signal
