"""One nsjail process and the fresh jail that waits inside it for the next job.

nsjail reads its configuration once and then opens a new jail, with new namespaces and an empty tmpfs, each time the
one before ended. Starting up is thus paid once per slot and the next jail is warm before its job comes.

Invariants: a jail takes one job; each job has its own output pipe; the exit is read from nsjail's log, which no job can
reach, by the process id that the kernel vouched for; all processes of a job are dead when its exit is logged.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from envs.errors import SandboxFailed
from envs.sandbox.command import JailSpec
from envs.sandbox.output import Output

START_TIMEOUT_S = 30.0  # from handing a job over to its first instruction, on a machine that may be very busy
DEATH_TIMEOUT_S = 10.0
TERM_TIMEOUT_S = 3.0
READ_BYTES = 65_536
FLOOD_FACTOR = 16  # output past the cap is read and dropped; past this many caps the job is killed
MAX_LEFTOVER_BYTES = 8 << 20
TIMEOUT_EXIT, KILLED_EXIT = 124, 137
_EXITED = re.compile(rb"pid=(\d+) \(.*?\) (?:exited with status: (\d+)|terminated with signal: \w+ \((\d+)\))")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the sender, as the kernel filled them in


class JobNotBegun(SandboxFailed):
    """The jail broke before the first instruction of the job, so another one may take it."""


@dataclass(frozen=True, slots=True)
class RawResult:
    output: str
    exit_code: int
    is_timeout: bool
    is_output_truncated: bool
    is_flood: bool
    leftovers: bytes
    wall_s: float

    @property
    def was_killed(self) -> bool:
        return self.is_timeout or self.is_flood


class Jail:
    """A slot. Only ``abort`` and ``close`` may be called from another thread than ``run``.

    It blocks, so it belongs on a worker thread; one that outlives it, as nsjail is killed when the thread that started
    it ends.
    """

    def __init__(self, spec: JailSpec) -> None:
        ours, theirs = socket.socketpair()
        log_read, log_write = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR)
        argv = spec.argv()
        try:
            self._pid = os.posix_spawn(
                argv[0],
                argv,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, log_write, 2),
                ],
            )
        except OSError:
            ours.close()
            os.close(log_read)
            raise
        finally:
            theirs.close()
            os.close(log_write)
            os.close(null)
        os.set_blocking(log_read, False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._channel, self._log_fd, self._log = ours, log_read, b""
        self._lock = threading.Lock()
        self._is_alive = True
        self._job_pid = self._job_fd = -1  # the first process of the jail that runs a job now

    @property
    def pid(self) -> int:
        """The process id of nsjail."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def run(self, body: bytes, *, timeout_s: float, max_output_bytes: int, collect: bool) -> RawResult:
        """Run one job. Raises JobNotBegun when the jail did not take it, SandboxFailed when it broke under it."""
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        files_read, files_write = os.pipe2(os.O_CLOEXEC) if collect else (-1, -1)
        fds = [out_write, files_write] if collect else [out_write]
        try:
            try:
                self._hand_over(body, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            return self._follow(out_read, files_read, timeout_s, max_output_bytes)
        except SandboxFailed:
            self._kill_job()
            self._end_nsjail()
            raise
        finally:
            self._forget_job()
            os.close(out_read)
            if collect:
                os.close(files_read)

    def _hand_over(self, body: bytes, fds: list[int]) -> None:
        self._drain_log()
        try:
            if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                raise JobNotBegun(f"nsjail has ended; {self._log_tail()}")
            self._channel.settimeout(START_TIMEOUT_S)
            socket.send_fds(self._channel, [len(body).to_bytes(8, "big")], fds)
            self._channel.sendall(body)
            begun, ancillary, _, _ = self._channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError as error:
            raise JobNotBegun(f"the jail did not take the job: {error}; {self._log_tail()}") from error
        if begun != b"R":
            raise JobNotBegun(f"the jail ended before the job began; {self._log_tail()}")
        with self._lock:
            self._job_pid = _CREDENTIALS.unpack(ancillary[0][2])[0]
            with contextlib.suppress(ProcessLookupError):  # a quick job is over already
                self._job_fd = os.pidfd_open(self._job_pid)

    def _forget_job(self) -> None:
        with self._lock:
            if self._job_fd >= 0:
                os.close(self._job_fd)
            self._job_pid = self._job_fd = -1

    def _follow(self, out_fd: int, files_fd: int, timeout_s: float, max_output_bytes: int) -> RawResult:
        """Read what the job sends until it is over, by itself or because its time or its output ran out."""
        began = time.monotonic()
        deadline = began + timeout_s
        output, leftovers = Output(max_output_bytes), bytearray()
        sinks: dict[int, Callable[[bytes], None]] = {out_fd: output.add}
        if files_fd >= 0:
            sinks[files_fd] = leftovers.extend
        poller = select.poll()
        for fd in (*sinks, self._log_fd):
            poller.register(fd, select.POLLIN)
        exit_code: int | None = None
        is_timeout = is_flood = False
        while exit_code is None or sinks:
            is_late = time.monotonic() >= deadline
            was_killed = is_timeout or is_flood
            if was_killed and is_late:
                raise SandboxFailed("a killed job did not end")
            is_flood = is_flood or output.size > FLOOD_FACTOR * max_output_bytes or len(leftovers) > MAX_LEFTOVER_BYTES
            is_timeout = is_timeout or (is_late and not is_flood)
            if (is_timeout or is_flood) and not was_killed:
                self._kill_job()
                deadline = time.monotonic() + DEATH_TIMEOUT_S
            for fd, _ in poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                if fd == self._log_fd:
                    exit_code = self._exit_from_log()
                elif data := os.read(fd, READ_BYTES):
                    sinks[fd](data)
                else:
                    poller.unregister(fd)
                    del sinks[fd]
        if is_timeout or is_flood:
            exit_code = TIMEOUT_EXIT if is_timeout else KILLED_EXIT
        return RawResult(
            output=output.text(),
            exit_code=exit_code,
            is_timeout=is_timeout,
            is_output_truncated=output.is_truncated,
            is_flood=is_flood,
            leftovers=bytes(leftovers),
            wall_s=time.monotonic() - began,
        )

    def _exit_from_log(self) -> int | None:
        try:
            data = os.read(self._log_fd, READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise SandboxFailed(f"nsjail ended under the job; {self._log_tail()}")
        self._log += data
        for pid, status, killed_by in _EXITED.findall(self._log):
            if int(pid) == self._job_pid:
                return int(status) if status else 128 + int(killed_by)
        return None

    def _drain_log(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._log_fd, READ_BYTES)
        self._log = b""

    def _log_tail(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self._log += os.read(self._log_fd, READ_BYTES)
        lines = [line for line in self._log.decode("utf-8", "replace").splitlines() if not line.startswith("[I]")]
        return " | ".join(lines[-3:]) or "nsjail said nothing"

    def abort(self) -> None:
        """End the job under way, from any thread; if it has not begun, the whole slot."""
        if not self._kill_job():
            self._end_nsjail()

    def _kill_job(self) -> bool:
        """Kill the first process of the jail, and with it, by the kernel, all others. False without a job."""
        with self._lock:
            if self._job_fd < 0:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._job_fd, signal.SIGKILL)
            return True

    def close(self) -> None:
        """End nsjail and its jail; a job under way fails. Its descriptors are closed by the thread that runs it."""
        self._end_nsjail()
        with self._lock:
            if self._job_pid < 0 and self._log_fd >= 0:
                self._channel.close()
                os.close(self._log_fd)
                self._log_fd = -1

    def _end_nsjail(self) -> None:
        with self._lock:
            if not self._is_alive:
                return
            self._is_alive = False
        os.kill(self._pid, signal.SIGTERM)  # nsjail kills and reaps its jail first
        watched = os.pidfd_open(self._pid)
        if not select.select([watched], [], [], TERM_TIMEOUT_S)[0]:
            os.kill(self._pid, signal.SIGKILL)  # and the jail with it, by its parent-death signal
        os.close(watched)
        os.waitpid(self._pid, 0)
