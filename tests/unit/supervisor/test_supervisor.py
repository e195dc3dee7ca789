"""The supervisor starts in stages, restarts what dies, drains in order, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from online_agent.supervisor.child import Child, ChildSpec, ChildState
from online_agent.supervisor.supervisor import Plan, StartFailed, Supervisor

SLEEPER = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def spec(name: str, code: str = SLEEPER, *, stop_timeout_s: float = 5.0, start_timeout_s: float = 10.0,
         is_ready: Callable[[int], bool] = lambda _pid: True) -> ChildSpec:  # fmt: skip
    return ChildSpec(
        name, (sys.executable, "-c", code), is_ready, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s
    )


def plan(*specs: ChildSpec) -> Plan:
    return Plan([[one] for one in specs], [one.name for one in reversed(specs)])


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not become true in time"
        time.sleep(0.02)


class Operator:
    """Acts on the running supervisor from its own display callback, so that no second thread is needed."""

    def __init__(self, *steps: Callable[[Sequence[Child]], bool]) -> None:
        self._steps = list(steps)

    def __call__(self, children: Sequence[Child]) -> None:
        if self._steps and self._steps[0](children):
            self._steps.pop(0)


def all_ready(children: Sequence[Child]) -> bool:
    return all(child.state is ChildState.READY for child in children)


def stop_when_ready(children: Sequence[Child]) -> bool:
    if all_ready(children):
        os.kill(os.getpid(), signal.SIGTERM)
        return True
    return False


def test_all_processes_end_when_a_signal_asks_for_it(tmp_path: Path) -> None:
    ready: list[dict[str, int]] = []

    def note_and_stop(pids: dict[str, int]) -> None:
        ready.append(pids)
        os.kill(os.getpid(), signal.SIGTERM)

    supervisor = Supervisor(plan(spec("a"), spec("b")), tmp_path, on_ready=note_and_stop)
    supervisor.run()
    assert sorted(ready[0]) == ["a", "b"]
    assert [child.state for child in supervisor.children] == [ChildState.STOPPED] * 2
    assert [child.last_exit for child in supervisor.children] == [-signal.SIGTERM] * 2
    assert not any(psutil.pid_exists(pid) for pid in ready[0].values())


def test_a_stage_starts_only_after_the_one_before_is_ready(tmp_path: Path) -> None:
    marker = tmp_path / "ready"
    order: list[str] = []

    def note(children: Sequence[Child]) -> bool:
        second = children[1]
        order.append(f"{marker.exists()}:{second.state}")
        if len(order) == 3:
            marker.touch()
        return False

    def change(children: Sequence[Child]) -> None:
        note(children)
        stop(children)

    stop = Operator(stop_when_ready)
    supervisor = Supervisor(
        plan(spec("first", is_ready=lambda _pid: marker.exists()), spec("second")),
        tmp_path,
        on_ready=lambda _: None,
        on_change=change,
    )
    supervisor.run()
    assert order[:3] == ["False:waiting"] * 3
    assert "True:ready" in order


def test_a_killed_process_is_started_again_and_the_others_stay(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def kill_first(children: Sequence[Child]) -> bool:
        if not all_ready(children):
            return False
        first, second = children
        assert first.pid is not None
        assert second.pid is not None
        seen.update(first=first.pid, second=second.pid)
        os.kill(first.pid, signal.SIGKILL)
        return True

    def back_again(children: Sequence[Child]) -> bool:
        if children[0].num_restarts == 0 or not all_ready(children):
            return False
        assert children[0].last_exit == -signal.SIGKILL
        assert children[0].pid != seen["first"]
        assert children[1].pid == seen["second"]
        return stop_when_ready(children)

    supervisor = Supervisor(
        plan(spec("first"), spec("second")),
        tmp_path,
        on_ready=lambda _: None,
        on_change=Operator(kill_first, back_again),
    )
    supervisor.run()
    assert supervisor.children[0].num_restarts == 1


def test_restarts_wait_longer_each_time(tmp_path: Path) -> None:
    now = [0.0]
    child = Child(spec("dies", "raise SystemExit(3)", is_ready=lambda _pid: False), tmp_path, clock=lambda: now[0])
    child.start()
    waits = []
    for _ in range(4):
        wait_until(lambda: child.poll() is ChildState.BACKING_OFF)
        start = now[0]
        while child.poll() is ChildState.BACKING_OFF:
            now[0] += 0.25
        waits.append(now[0] - start)
    child.kill()
    assert waits == [0.5, 1.0, 2.0, 4.0]
    assert child.last_exit == 3


def test_a_process_that_never_starts_is_reported_with_its_last_words(tmp_path: Path) -> None:
    broken = spec("broken", "print('no such model'); raise SystemExit(2)", is_ready=lambda _pid: False)
    supervisor = Supervisor(plan(spec("fine"), broken), tmp_path, on_ready=lambda _: None)
    with pytest.raises(StartFailed, match=r"broken ended 3 times while starting \(exit code 2\).*no such model"):
        supervisor.run()
    assert [child.state for child in supervisor.children] == [ChildState.STOPPED] * 2


def test_a_start_that_hangs_counts_as_a_failure(tmp_path: Path) -> None:
    child = Child(spec("hangs", start_timeout_s=0.1, is_ready=lambda _pid: False), tmp_path)
    child.start()
    pid = child.pid
    assert pid is not None
    wait_until(lambda: child.poll() is ChildState.BACKING_OFF)
    assert not psutil.pid_exists(pid)


def test_processes_drain_in_the_stop_order_one_after_the_other(tmp_path: Path) -> None:
    log = tmp_path / "order"
    code = textwrap.dedent(f"""
        import signal, sys, time
        def stop(*_):
            time.sleep(0.2)
            open({str(log)!r}, "a").write(sys.argv[1] + "\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        open(sys.argv[2], "w").close()
        time.sleep(60)
    """)

    def ready_when_marked(name: str) -> ChildSpec:
        marker = tmp_path / name
        return ChildSpec(name, (sys.executable, "-c", code, name, str(marker)), lambda _pid: marker.exists())

    stage = [ready_when_marked(name) for name in ("redis", "engine", "api")]
    Supervisor(
        Plan([stage], ["api", "engine", "redis"]), tmp_path / "logs", on_ready=lambda _: None,
        on_change=Operator(stop_when_ready),
    ).run()  # fmt: skip
    assert log.read_text().split() == ["api", "engine", "redis"]


def test_a_process_that_ignores_the_signal_is_killed_after_its_time(tmp_path: Path) -> None:
    marker = tmp_path / "up"
    code = DEAF + f"open({str(marker)!r}, 'w'); time.sleep(60)"
    stubborn = spec("stubborn", code, stop_timeout_s=0.3, is_ready=lambda _pid: marker.exists())
    supervisor = Supervisor(plan(stubborn), tmp_path, on_ready=lambda _: None, on_change=Operator(stop_when_ready))
    started = time.monotonic()
    supervisor.run()
    assert supervisor.children[0].last_exit == -signal.SIGKILL
    assert time.monotonic() - started < 5


def test_a_second_signal_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    marker = tmp_path / "up"
    code = DEAF + f"open({str(marker)!r}, 'w'); time.sleep(60)"
    slow = spec("slow", code, stop_timeout_s=50.0, is_ready=lambda _pid: marker.exists())

    def stop_again(children: Sequence[Child]) -> bool:
        if children[0].state is not ChildState.STOPPING:
            return False
        os.kill(os.getpid(), signal.SIGINT)
        return True

    supervisor = Supervisor(
        plan(slow), tmp_path, on_ready=lambda _: None, on_change=Operator(stop_when_ready, stop_again)
    )
    started = time.monotonic()
    supervisor.run()
    assert time.monotonic() - started < 5
    assert supervisor.children[0].last_exit == -signal.SIGKILL


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from online_agent.supervisor.child import ChildSpec
        from online_agent.supervisor.supervisor import Plan, Supervisor
        spec = ChildSpec("child", (sys.executable, "-c", {SLEEPER!r}), lambda pid: True)
        note = lambda pids: Path({str(tmp_path / "pid")!r}).write_text(str(pids["child"]))
        Supervisor(Plan([[spec]], ["child"]), Path({str(tmp_path)!r}), on_ready=note).run()
    """)
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        child_pid = int((tmp_path / "pid").read_text())
        assert psutil.pid_exists(child_pid)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not psutil.pid_exists(child_pid) or psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE)


def test_a_plan_that_forgets_a_process_in_its_stop_order_is_refused() -> None:
    with pytest.raises(ValueError, match="does not name each of"):
        Plan([[spec("a"), spec("b")]], ["a"])


def test_signals_are_only_taken_while_running(tmp_path: Path) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    Supervisor(plan(spec("a")), tmp_path, on_ready=lambda _: None, on_change=Operator(stop_when_ready)).run()
    assert signal.getsignal(signal.SIGTERM) is before
