"""The sandbox: untrusted code in nsjail, a fresh jail for each job, one user per concurrent slot.

Nothing runs unless the jails hold: the first use proves it (see ``probe``), and a machine where that fails gets
NoSandbox, never an unprotected run.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from envs.errors import SandboxFailed
from envs.sandbox.command import JailSpec, find_nsjail
from envs.sandbox.jail import Jail, JobNotBegun, RawResult
from envs.sandbox.job import encode_job, parse_leftovers
from envs.sandbox.probe import check_jails_hold
from envs.types import SandboxResult


class NsjailSandbox:
    """Implements ``envs.protocols.Sandbox``.

    max_jobs: jobs at the same time; more of them wait. memory_mb: address space of each process of a job.
    max_output_bytes: output kept of a job. first_uid: agents' jobs run as ``first_uid .. first_uid + max_jobs - 1``,
    verifiers' jobs as the ``max_jobs`` users after those. Started by a normal user, all jobs run as that user.
    Raises NoSandbox where nsjail is missing. Belongs to one process: create it after a fork, not before.
    """

    def __init__(
        self, max_jobs: int = 8, memory_mb: int = 512, max_output_bytes: int = 65_536, first_uid: int = 20_001
    ) -> None:
        if first_uid < 1:
            raise ValueError(f"first_uid is {first_uid}; a job never runs as root")
        self._nsjail = find_nsjail()
        self._max_jobs, self._memory_mb = max_jobs, memory_mb
        self._max_output_bytes, self._first_uid = max_output_bytes, first_uid
        self._workers = ThreadPoolExecutor(max_jobs, thread_name_prefix="sandbox")
        self._lock = threading.Lock()
        self._idle: dict[bool, list[tuple[int, Jail]]] = {False: [], True: []}
        self._busy: dict[bool, dict[int, Jail]] = {False: {}, True: {}}
        self._probe_lock = threading.Lock()
        self._is_proven = False
        self._is_closed = False

    async def probe(self) -> None:
        """Return once a jail was seen to run a job and to deny what it must. Raises NoSandbox with the reason."""
        await asyncio.get_running_loop().run_in_executor(self._workers, self._prove)

    async def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, str],
        *,
        timeout_s: float,
        collect_files: bool = False,
        as_verifier: bool = False,
    ) -> SandboxResult:
        """Run argv in a fresh jail that holds ``files``; see the protocol.

        ``python3 -I -S SCRIPT`` (as ``/usr/bin/python3``) is the cheap way to run Python. The exit code is 124 after a
        timeout, 137 for a job killed because of its output, 128 + n after signal n.
        Raises SandboxFailed when the jail did not do its work, ValueError for files that cannot be placed.
        """
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s is {timeout_s}")
        if self._is_closed:
            raise SandboxFailed("the sandbox is closed")
        body = encode_job(argv, files, collect_files)
        call = _Call()
        future = asyncio.get_running_loop().run_in_executor(
            self._workers, self._run_blocking, call, body, timeout_s, collect_files, as_verifier
        )
        try:
            raw = await asyncio.shield(future)
        except asyncio.CancelledError:
            call.cancel()
            future.cancel()
            raise
        return _result(raw, collect_files)

    async def close(self) -> None:
        """End all jails. Jobs under way fail."""
        with self._lock:
            self._is_closed = True
            idle = [jail for jails in self._idle.values() for _, jail in jails]
            busy = [jail for jails in self._busy.values() for jail in jails.values()]
            for jails in self._idle.values():
                jails.clear()
        for jail in busy:
            jail.abort()
        for jail in idle:
            jail.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _prove(self) -> None:
        with self._probe_lock:
            if not self._is_proven:
                check_jails_hold(lambda body: self._in_jail(_Call(), body, 10.0, False, False))
                self._is_proven = True

    def _run_blocking(self, call: _Call, body: bytes, timeout_s: float, collect: bool, as_verifier: bool) -> RawResult:
        if not self._is_proven:
            self._prove()
        return self._in_jail(call, body, timeout_s, collect, as_verifier)

    def _in_jail(self, call: _Call, body: bytes, timeout_s: float, collect: bool, as_verifier: bool) -> RawResult:
        try:
            return self._attempt(call, body, timeout_s, collect, as_verifier)
        except JobNotBegun:
            # The warm jail had died while it waited, for example when the machine ran out of memory.
            return self._attempt(call, body, timeout_s, collect, as_verifier)

    def _attempt(self, call: _Call, body: bytes, timeout_s: float, collect: bool, as_verifier: bool) -> RawResult:
        slot, jail = self._take(as_verifier)
        try:
            call.begin(jail)
            return jail.run(body, timeout_s=timeout_s, max_output_bytes=self._max_output_bytes, collect=collect)
        finally:
            call.end()
            self._give_back(slot, jail, as_verifier)

    def _take(self, as_verifier: bool) -> tuple[int, Jail]:
        with self._lock:
            if self._is_closed:
                raise SandboxFailed("the sandbox is closed")
            if self._idle[as_verifier]:
                slot, jail = self._idle[as_verifier].pop()
            else:
                slot = next(n for n in range(self._max_jobs) if n not in self._busy[as_verifier])
                jail = self._open(self._uid(slot, as_verifier))
            self._busy[as_verifier][slot] = jail
            return slot, jail

    def _open(self, uid: int) -> Jail:
        try:
            return Jail(JailSpec(self._nsjail, uid, self._memory_mb))
        except OSError as error:
            raise SandboxFailed(f"nsjail could not be started: {error}") from error

    def _give_back(self, slot: int, jail: Jail, as_verifier: bool) -> None:
        with self._lock:
            del self._busy[as_verifier][slot]
            if jail.is_alive and not self._is_closed:
                self._idle[as_verifier].append((slot, jail))
                return
        jail.close()

    def _uid(self, slot: int, as_verifier: bool) -> int:
        if os.geteuid() != 0:
            return os.geteuid()
        return self._first_uid + slot + (self._max_jobs if as_verifier else 0)


class _Call:
    """Lets the event loop end a job that a worker thread follows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jail: Jail | None = None
        self._is_cancelled = False

    def begin(self, jail: Jail) -> None:
        with self._lock:
            if self._is_cancelled:
                raise SandboxFailed("the job was cancelled")
            self._jail = jail

    def end(self) -> None:
        """The jail may take another job from now on."""
        with self._lock:
            self._jail = None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._jail is not None:
                self._jail.abort()


def _result(raw: RawResult, collect: bool) -> SandboxResult:
    found = parse_leftovers(raw.leftovers) if collect and not raw.was_killed else None
    return SandboxResult(
        output=raw.output,
        exit_code=raw.exit_code,
        is_timeout=raw.is_timeout,
        is_output_truncated=raw.is_output_truncated,
        files=found.files if found else None,
        wall_s=raw.wall_s,
        links=found.links if found else {},
        skipped_files=tuple(found.skipped) if found else (),
    )
