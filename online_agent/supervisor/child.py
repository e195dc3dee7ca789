"""One supervised process: how it is started, when it counts as ready, how it is stopped.

Invariants:
- a child never outlives the supervisor: the kernel sends it SIGKILL when its parent dies
- a child is only ever signalled by its own process id, while that id is still ours to reap
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from online_agent.supervisor.lifeline import die_with_parent
from online_agent.telemetry.redaction import redact_text

# Restarts wait 0.5 s, 1 s, 2 s ... up to this; a child that stayed up this long starts again from the first delay.
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_STABLE_AFTER_S = 60.0
_NUM_LAST_LINES = 5


class ChildState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. ``is_ready(pid)`` is asked until it says yes; it must answer quickly and not raise."""

    name: str
    argv: Sequence[str]
    is_ready: Callable[[int], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0


class Child:
    """A running or restartable process. Not thread-safe: one supervisor loop owns it."""

    def __init__(self, spec: ChildSpec, logs_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.state = ChildState.WAITING
        self.num_restarts = 0
        self.last_exit: int | None = None
        self._output = logs_dir / f"{spec.name}.out"
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._since = clock()
        self._started_at = clock()
        self._restart_at = 0.0
        self._backoff_s = _FIRST_BACKOFF_S

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def seconds_in_state(self) -> float:
        return self._clock() - self._since

    def start(self) -> None:
        """Start the process; what it prints is appended to ``<logs_dir>/<name>.out``."""
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                list(self.spec.argv),
                env={**os.environ, **self.spec.env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
                start_new_session=True,
            )
        self._started_at = self._clock()
        self._enter(ChildState.STARTING)

    def poll(self) -> ChildState:
        """Look once: notice an exit, a start that took too long, readiness, or a restart that is due."""
        if self.state is ChildState.BACKING_OFF:
            if self._clock() >= self._restart_at:
                self.num_restarts += 1
                self.start()
        elif self.state in (ChildState.STARTING, ChildState.READY):
            self._poll_running()
        return self.state

    def _poll_running(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self.last_exit = code
            self._back_off()
        elif self.state is ChildState.STARTING:
            if self.spec.is_ready(self._process.pid):
                self._enter(ChildState.READY)
            elif self.seconds_in_state > self.spec.start_timeout_s:
                self.kill()
                self.last_exit = None
                self._back_off()

    def _back_off(self) -> None:
        if self._clock() - self._started_at > _STABLE_AFTER_S:
            self._backoff_s = _FIRST_BACKOFF_S
        self._restart_at = self._clock() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        self._process = None
        self._enter(ChildState.BACKING_OFF)

    def ask_to_stop(self) -> None:
        """SIGTERM; the process drains on its own time."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._enter(ChildState.STOPPING)

    def has_stopped(self) -> bool:
        """Whether the process is gone. True also for one that was never started."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._process is not None:
            self.last_exit = self._process.returncode
        self._enter(ChildState.STOPPED)
        return True

    def kill(self) -> None:
        """SIGKILL to the process and the group it leads, then reap it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """The end of what the process printed."""
        text = self._output.read_text(errors="replace") if self._output.exists() else ""
        return redact_text(" | ".join(text.strip().splitlines()[-_NUM_LAST_LINES:]))

    def _enter(self, state: ChildState) -> None:
        if state is not self.state:
            self.state = state
            self._since = self._clock()
