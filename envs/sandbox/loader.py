# ruff: noqa: SIM105 - contextlib is not a built-in module; importing it would cost every job a millisecond
"""The first process of every jail: takes one job from file descriptor 0, becomes it, and never returns.

Runs inside the jail under the system's Python with ``-I -S``; it is on the hot path of every tool call, so it is
compiled once on the host and imports built-in modules only. A script for the same interpreter runs in this very
process, which saves a second start-up.

A job arrives as 8 bytes (length) with the descriptors for output and, if wanted, for the files left behind; then a
marshalled (argv, files, collect). One byte back says that the job begins. Nothing of the job runs before that byte,
and no descriptor but the output is open in the job.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the built-in behind signal
import _socket
import marshal
import posix
import sys
import time

WORKSPACE = "/tmp/workspace"
THIS_INTERPRETER = ["/usr/bin/python3", "-I", "-S"]
PROGRAM_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/usr/sbin")
ORPHAN_WAIT_S = 5  # without a host, a slow exit keeps an nsjail that opens jail after jail from spinning
MAX_FILES, MAX_DEPTH, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1024, 64, 262_144, 4_194_304


def receive() -> tuple[list[str], int]:
    """The job's argv, with its files and output in place, and where to send the files left behind (-1: nowhere)."""
    channel = _socket.socket(fileno=posix.dup(0))
    head, ancillary, _, _ = channel.recvmsg(8, _socket.CMSG_SPACE(8), _socket.MSG_WAITALL)
    if len(head) < 8:
        time.sleep(ORPHAN_WAIT_S)
        posix._exit(1)
    data = ancillary[0][2]
    fds = [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]
    body = channel.recv(int.from_bytes(head, "big"), _socket.MSG_WAITALL)
    argv, files, collect = marshal.loads(body)
    posix.mkdir(WORKSPACE)
    posix.chdir(WORKSPACE)
    for path, content in files.items():
        write(path, content)
    null = posix.open("/dev/null", posix.O_RDONLY)
    posix.dup2(null, 0)
    posix.dup2(fds[0], 1)
    posix.dup2(fds[0], 2)
    posix.close(null)
    posix.close(fds[0])
    channel.send(b"R")
    channel.close()
    return argv, fds[1] if collect else -1


def write(path: str, content: bytes) -> None:
    parts = path.split("/")
    for depth in range(1, len(parts)):
        try:
            posix.mkdir("/".join(parts[:depth]))
        except FileExistsError:
            pass
    with open(path, "wb", 0) as file:
        file.write(content)


def become(argv: list[str]) -> None:
    """Run the job in this process."""
    if argv[:3] == THIS_INTERPRETER and len(argv) > 3 and argv[3][:1] != "-":
        return run_script(argv[3:])
    name = argv[0]
    for program in [name] if "/" in name else [f"{directory}/{name}" for directory in PROGRAM_DIRECTORIES]:
        try:
            posix.execve(program, argv, posix.environ)
        except FileNotFoundError:
            pass
        except OSError as error:
            give_up(f"{name}: {error.strerror}", 126)
    give_up(f"{name}: No such file or directory", 127)


def give_up(message: str, status: int) -> None:
    posix.write(2, message.encode("utf-8", "replace") + b"\n")
    posix._exit(status)


def run_script(argv: list[str]) -> None:
    """``python3 -I -S SCRIPT ARGS``, as a fresh interpreter would run it."""
    main = type(sys)("__main__")
    main.__dict__.update(__file__=argv[0], __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    sys.excepthook = show_exception
    try:
        with open(argv[0], "rb") as file:
            source = file.read()
    except OSError as error:
        give_up(f"/usr/bin/python3: can't open file {argv[0]!r}: {error.strerror}", 2)
    exec(compile(source, argv[0], "exec"), main.__dict__)
    if "threading" in sys.modules or "atexit" in sys.modules:
        sys.exit()  # the interpreter's own end, which waits for threads and runs what was registered
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        posix._exit(120)
    posix._exit(0)


def show_exception(kind, error, trace):  # type: ignore[no-untyped-def]  # the hook's own signature
    """The job's traceback without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename in ("<string>", "<loader>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


class Leftovers:
    """Sends what lies in the workspace as records of kind, path and content. Links are read, never followed."""

    def __init__(self, fd: int) -> None:
        self.out = open(fd, "wb")  # noqa: SIM115 - closed at the end of send
        self.num_files = self.num_bytes = 0

    def send(self) -> None:
        self.directory(".", "", 0)
        self.record(b"E", "overflow" if self.num_files > MAX_FILES else "")
        self.out.close()

    def record(self, kind: bytes, path: str, content: bytes = b"") -> None:
        name = path.encode("utf-8", "surrogateescape")
        self.out.write(kind + len(name).to_bytes(4, "big") + len(content).to_bytes(4, "big") + name + content)

    def directory(self, source: str, path: str, depth: int) -> None:
        try:
            names = sorted(posix.listdir(source)) if depth <= MAX_DEPTH else None
        except OSError:
            names = None
        if names is None:
            return self.record(b"S", path)
        for name in names:
            self.num_files += 1
            if self.num_files > MAX_FILES:
                return
            self.entry(f"{source}/{name}", f"{path}/{name}" if path else name, depth)

    def entry(self, source: str, path: str, depth: int) -> None:
        try:
            kind = posix.lstat(source).st_mode & 0o170000
            if kind == 0o120000:
                return self.record(b"L", path, posix.readlink(source).encode("utf-8", "surrogateescape"))
        except OSError:
            return self.record(b"S", path)
        if kind == 0o040000:
            return self.directory(source, path, depth + 1)
        content = self.read(source) if kind == 0o100000 else None
        self.record(b"S" if content is None else b"F", path, content or b"")

    def read(self, source: str) -> bytes | None:
        try:
            fd = posix.open(source, posix.O_RDONLY | posix.O_NOFOLLOW)
        except OSError:
            return None
        content = posix.read(fd, MAX_FILE_BYTES + 1)
        posix.close(fd)
        self.num_bytes += len(content)
        return content if len(content) <= MAX_FILE_BYTES and self.num_bytes <= MAX_TOTAL_BYTES else None


def supervise(argv: list[str], files_fd: int) -> None:
    """Run the job as a child, then send the files it left and pass its exit on."""
    job = posix.fork()
    if job == 0:
        posix.close(files_fd)
        become(argv)
        return
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # the one signal with a handler that the job could send
    pid = status = 0
    while pid != job:
        pid, status = posix.wait()
    try:
        posix.kill(-1, 9)  # nothing may change the files while they are read
    except ProcessLookupError:
        pass
    Leftovers(files_fd).send()
    posix._exit(posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else 128 + posix.WTERMSIG(status))


def main() -> None:
    argv, files_fd = receive()
    if files_fd < 0:
        become(argv)
    else:
        supervise(argv, files_fd)


main()
