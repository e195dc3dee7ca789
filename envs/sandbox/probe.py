"""Proof that the jails of this machine hold, before anything untrusted runs in them."""

from __future__ import annotations

import socket
from collections.abc import Callable

from envs.errors import NoSandbox, SandboxFailed
from envs.sandbox.command import PYTHON
from envs.sandbox.jail import RawResult
from envs.sandbox.job import encode_job

# Prints the name of each thing that the job can do and must not. The port is one that the host really listens on.
_ATTEMPTS = """
import errno, os, socket, sys

def succeeds(act):
    try:
        return act() is not False
    except OSError:
        return False

def is_filtered():
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    except OSError as error:
        return error.errno == errno.EAFNOSUPPORT
    return False

leaks = {
    "system-calls": not is_filtered(),
    "host-network": succeeds(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1)),
    "root-filesystem": succeeds(lambda: os.access("/usr", os.W_OK)),
    "host-files": succeeds(lambda: os.listdir("/etc")),
    "root-user": os.getuid() == 0,
}
print(*[name for name, is_open in leaks.items() if is_open])
"""


def check_jails_hold(run: Callable[[bytes], RawResult]) -> None:
    """Raise NoSandbox, with a plain reason, unless one job runs and another is denied everything it must be."""
    try:
        trivial = run(encode_job([PYTHON, "-I", "-S", "hello.py"], {"hello.py": "print(6 * 7)"}, False))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            denied = run(encode_job([PYTHON, "-I", "-S", "probe.py", port], {"probe.py": _ATTEMPTS}, False))
    except SandboxFailed as error:
        raise NoSandbox(f"no jail could be opened on this machine: {error}") from error
    if (trivial.output, trivial.exit_code) != ("42\n", 0):
        raise NoSandbox(f"a trivial job ended with {trivial.exit_code} and {trivial.output!r}")
    if (denied.output, denied.exit_code) != ("\n", 0):
        raise NoSandbox(f"the jail does not hold: {denied.output.strip()!r}")
