"""Proof that the jails of this machine hold, before anything untrusted runs in them."""

from __future__ import annotations

import socket
from collections.abc import Callable

from envs.errors import NoSandbox, SandboxFailed
from envs.sandbox.command import PYTHON
from envs.sandbox.jail import RawResult
from envs.sandbox.job import encode_job

# Each attempt must fail; what succeeds is printed. The port is one that the host really listens on.
_ATTEMPTS = """
import os, socket, sys

def attempt(name, act):
    try:
        act()
    except OSError:
        return
    print(name, end=" ")

attempt("raw-socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("host-network", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1))
attempt("root-filesystem", lambda: open("/usr/probe", "w"))
attempt("host-files", lambda: os.listdir("/etc"))
if os.getuid() == 0:
    print("root-user", end=" ")
print("done")
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
    if denied.output != "done\n":
        raise NoSandbox(f"the jail does not hold: {denied.output!r}")
