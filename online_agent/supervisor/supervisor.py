"""Starts the children in stages, restarts what dies, and drains them in order when asked to stop.

The first SIGTERM or SIGINT drains stage by stage, the reverse of the order of dependence; a second one kills.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from online_agent.errors import OnlineAgentError
from online_agent.supervisor.child import Child, ChildSpec, ChildState
from online_agent.telemetry.logging import get_logger

_log = get_logger(__name__)
_POLL_S = 0.2
# A process that dies again and again before it was ever ready will not get better by itself.
_MAX_START_ATTEMPTS = 2


class StartFailed(OnlineAgentError):
    code = "start_failed"


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages start one after the other (the members of one at the same time); ``stop_order`` names who drains first."""

    stages: Sequence[Sequence[ChildSpec]]
    stop_order: Sequence[str]

    def __post_init__(self) -> None:
        names = [spec.name for stage in self.stages for spec in stage]
        if sorted(names) != sorted(self.stop_order):
            raise ValueError(f"stop order {list(self.stop_order)} does not name each of {names} once")


class Supervisor:
    """Runs a plan. ``on_ready`` gets the process ids once all are ready.

    ``on_change`` is called after each look at the children, for a status display.
    """

    def __init__(
        self,
        plan: Plan,
        logs_dir: Path,
        *,
        on_ready: Callable[[dict[str, int]], None],
        on_change: Callable[[Sequence[Child]], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stages = [[Child(spec, logs_dir) for spec in stage] for stage in plan.stages]
        self._stop_order = plan.stop_order
        self._on_ready = on_ready
        self._on_change = on_change
        self._sleep = sleep
        self._num_signals = 0

    @property
    def children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    def run(self) -> None:
        """Return after all children have ended because a signal asked for it. Raises StartFailed."""
        with self._signals():
            try:
                self._start()
                while not self._num_signals:
                    self._look()
                self._drain()
            finally:
                for child in self.children:
                    child.kill()
                    child.has_stopped()
                self._on_change(self.children)

    def _start(self) -> None:
        for stage in self._stages:
            for child in stage:
                child.start()
            while not self._num_signals and any(child.state is not ChildState.READY for child in stage):
                self._look()
                self._give_up_if_hopeless()
        if not self._num_signals:
            self._on_ready({child.spec.name: child.pid for child in self.children if child.pid is not None})

    def _give_up_if_hopeless(self) -> None:
        for child in self.children:
            if child.num_restarts >= _MAX_START_ATTEMPTS and child.state is ChildState.BACKING_OFF:
                raise StartFailed(
                    f"{child.spec.name} ended {child.num_restarts + 1} times while starting "
                    f"(exit code {child.last_exit}); its last words: {child.last_words()}"
                )

    def _look(self) -> None:
        for child in self.children:
            before = child.state
            state = child.poll()
            if state is ChildState.BACKING_OFF and before is not state:
                _log.error("process ended", child=child.spec.name, exit_code=child.last_exit)
            elif state is not before:
                _log.info("process state", child=child.spec.name, state=state.value, pid=child.pid)
        self._on_change(self.children)
        self._sleep(_POLL_S)

    def _drain(self) -> None:
        by_name = {child.spec.name: child for child in self.children}
        for name in self._stop_order:
            child = by_name[name]
            child.ask_to_stop()
            deadline = time.monotonic() + child.spec.stop_timeout_s
            while not child.has_stopped():
                if self._num_signals > 1 or time.monotonic() > deadline:
                    _log.warning("process killed", child=name, forced=self._num_signals > 1)
                    child.kill()
                self._on_change(self.children)
                self._sleep(_POLL_S / 4)
            self._on_change(self.children)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def count(_number: int, _frame: FrameType | None) -> None:
            self._num_signals += 1

        before = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
