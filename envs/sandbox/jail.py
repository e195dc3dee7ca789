"""One nsjail process and the fresh jail that waits inside it for the next job.

nsjail reads its configuration once and then opens a new jail, with new namespaces and an empty tmpfs, each time the
one before ended. Starting up is thus paid once per slot and the next jail is warm before its job comes.

Invariants: a jail takes one job; each job has its own output pipe; the exit is read from nsjail's log, which no job can
reach; all processes of a job are dead when its exit is logged. A job cut short takes its nsjail with it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass

from envs.errors import SandboxFailed
from envs.sandbox.command import JailSpec

START_TIMEOUT_S = 30.0  # from handing a job over to its first instruction, on a machine that may be very busy
DEATH_TIMEOUT_S = 10.0
FLOOD_FACTOR = 16  # output past the cap is read and dropped; past this many caps the job is killed
MAX_LEFTOVER_BYTES = 8 << 20
TIMEOUT_EXIT, KILLED_EXIT = 124, 137
_EXITED = re.compile(rb"pid=\d+ \(.*?\) (?:exited with status: (\d+)|terminated with signal: \w+ \((\d+)\))")


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
    """A slot. Not thread-safe but for ``kill``; blocking, so it belongs on a worker thread that outlives it.

    (The kernel kills nsjail when the thread that started it ends.)
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
        finally:
            theirs.close()
            os.close(log_write)
            os.close(null)
        os.set_blocking(log_read, False)
        self._channel, self._log_fd, self._log = ours, log_read, b""
        self._is_alive = True
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The process id of nsjail."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def run(self, body: bytes, *, timeout_s: float, max_output_bytes: int, collect: bool) -> RawResult:
        """Run one job. Raises SandboxFailed when the jail never began it or broke under it."""
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
            self.kill()
            raise
        finally:
            os.close(out_read)
            if collect:
                os.close(files_read)

    def _hand_over(self, body: bytes, fds: list[int]) -> None:
        self._drain_log()  # what came before this job says nothing about it
        try:
            self._channel.settimeout(START_TIMEOUT_S)
            socket.send_fds(self._channel, [len(body).to_bytes(8, "big")], fds)
            self._channel.sendall(body)
            has_begun = self._channel.recv(1) == b"R"
        except OSError as error:
            raise SandboxFailed(f"the jail did not take the job: {error}; {self._log_tail()}") from error
        if not has_begun:
            raise SandboxFailed(f"the jail ended before the job began; {self._log_tail()}")

    def _follow(self, out_fd: int, files_fd: int, timeout_s: float, max_output_bytes: int) -> RawResult:
        began = time.monotonic()
        deadline = began + timeout_s
        output = Output(max_output_bytes)
        leftovers = bytearray()
        open_fds = {out_fd} | ({files_fd} if files_fd >= 0 else set())
        is_timeout = is_flood = False
        exit_code: int | None = None
        poller = select.poll()
        for fd in (*open_fds, self._log_fd):
            poller.register(fd, select.POLLIN)
        while exit_code is None or open_fds:
            left_s = deadline - time.monotonic()
            is_flood = output.size > FLOOD_FACTOR * max_output_bytes or len(leftovers) > MAX_LEFTOVER_BYTES
            if (left_s <= 0 or is_flood) and self._is_alive:
                is_timeout = left_s <= 0
                self.kill()
                exit_code = TIMEOUT_EXIT if is_timeout else KILLED_EXIT
                deadline = time.monotonic() + DEATH_TIMEOUT_S
                poller.unregister(self._log_fd)
                continue
            if left_s <= 0:
                raise SandboxFailed("processes of a killed job still hold its output")
            for fd, _ in poller.poll(left_s * 1000):
                if fd == self._log_fd:
                    exit_code = self._exit_from_log()
                    continue
                data = os.read(fd, 65_536)
                if not data:
                    poller.unregister(fd)
                    open_fds.discard(fd)
                elif fd == out_fd:
                    output.add(data)
                else:
                    leftovers += data
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
            data = os.read(self._log_fd, 65_536)
        except BlockingIOError:
            return None
        if not data:
            raise SandboxFailed(f"nsjail ended under the job; {self._log_tail()}")
        self._log += data
        found = _EXITED.search(self._log)
        if found is None:
            return None
        status, killed_by = found.groups()
        return int(status) if status is not None else 128 + int(killed_by)

    def _drain_log(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._log_fd, 65_536)
        self._log = b""

    def _log_tail(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self._log += os.read(self._log_fd, 65_536)
        lines = [line for line in self._log.decode("utf-8", "replace").splitlines() if not line.startswith("[I]")]
        return " | ".join(lines[-3:]) or "nsjail said nothing"

    def kill(self) -> None:
        """End nsjail and everything in its jail, and reap it. The first process of a jail takes the others with it."""
        with self._lock:
            if not self._is_alive:
                return
            self._is_alive = False
        # Stopped, nsjail reaps nobody, so the pids read below cannot have passed to another process.
        os.kill(self._pid, signal.SIGSTOP)
        for child in _children(self._pid):
            os.kill(child, signal.SIGKILL)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def close(self) -> None:
        self.kill()
        self._channel.close()
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []  # killed with nsjail by their parent-death signal


class Output:
    """The first ``max_bytes`` of the output, decoded as one stream: bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._max_bytes = max_bytes
        self.size = 0

    @property
    def is_truncated(self) -> bool:
        return self.size > self._max_bytes

    def add(self, data: bytes) -> None:
        kept = data[: max(0, self._max_bytes - self.size)]
        self.size += len(data)
        self._parts.append(self._decoder.decode(kept))

    def text(self) -> str:
        return "".join(self._parts) + self._decoder.decode(b"", final=True)
