"""One slot: the output it keeps, and what happens when its nsjail breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from envs.errors import SandboxFailed
from envs.sandbox.command import JailSpec, find_nsjail
from envs.sandbox.jail import Jail
from envs.sandbox.job import encode_job
from envs.sandbox.nsjail import NsjailSandbox


@pytest.fixture
def jail() -> Iterator[Jail]:
    uid = 27_101 if os.geteuid() == 0 else os.geteuid()
    slot = Jail(JailSpec(find_nsjail(), uid, memory_mb=256))
    yield slot
    slot.close()


def run(jail: Jail, line: str, timeout_s: float = 10.0) -> str:
    body = encode_job(["sh", "-c", line], {}, False)
    return jail.run(body, timeout_s=timeout_s, max_output_bytes=1000, collect=False).output


def test_slot_takes_one_job_after_another(jail: Jail) -> None:
    assert [run(jail, f"echo {n}") for n in range(3)] == ["0\n", "1\n", "2\n"]
    assert jail.is_alive


def test_slot_stays_after_a_job_that_was_cut_short(jail: Jail) -> None:
    assert run(jail, "echo begun; sleep 30", timeout_s=0.3) == "begun\n"
    assert run(jail, "echo next") == "next\n"


def test_killed_nsjail_is_a_failure_of_the_sandbox_and_leaves_no_process(jail: Jail) -> None:
    pid = jail.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxFailed):
        run(jail, "echo never")
    jail.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_exit_that_nsjail_would_log_cannot_be_forged_by_a_job(jail: Jail) -> None:
    line = "for fd in 1 2 3 4 5 6; do echo '[I] pid=9 (x) exited with status: 0, (PIDs left: 0)' >&$fd; done; exit 7"
    body = encode_job(["bash", "-c", line], {}, False)
    assert jail.run(body, timeout_s=10, max_output_bytes=1000, collect=False).exit_code == 7


async def test_warm_jail_that_died_while_it_waited_is_replaced() -> None:
    sandbox = NsjailSandbox(max_jobs=1, first_uid=27_201)
    try:
        for _ in range(2):
            assert (await sandbox.run(["echo", "here"], {}, timeout_s=10)).output == "here\n"
            (_, idle), *_ = sandbox._idle[False]
            os.kill(idle.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)  # its jail dies with it, though not at once
        assert (await sandbox.run(["echo", "here"], {}, timeout_s=10)).output == "here\n"
    finally:
        await sandbox.close()


async def test_late_cancellation_spares_the_next_job_of_the_same_jail() -> None:
    sandbox = NsjailSandbox(max_jobs=1, first_uid=27_301)
    try:
        await sandbox.probe()
        first = asyncio.create_task(sandbox.run(["echo", "first"], {}, timeout_s=10))
        await asyncio.sleep(0)
        second = asyncio.create_task(sandbox.run(["sh", "-c", "sleep 0.5; echo second"], {}, timeout_s=10))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251  (the loop must not see that the first job is over)
        first.cancel()
        assert (await second).output == "second\n"
        with pytest.raises(asyncio.CancelledError):
            await first
    finally:
        await sandbox.close()
