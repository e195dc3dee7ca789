"""The attacks: each a script that prints what it got. Run by ``python3 -I -S`` inside the jail."""

from __future__ import annotations

PRELUDE = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def name(code):
    return errno.errorcode.get(code, str(code))

def attempt(act):
    try:
        act()
    except OSError as error:
        print(name(error.errno))
    else:
        print("succeeded")

def syscall(*numbers):
    done = libc.syscall(*[ctypes.c_long(n) for n in numbers])
    print("succeeded" if done >= 0 else name(ctypes.get_errno()))
"""

# name → (script after the prelude, what it prints when the jail holds)
DENIED: dict[str, tuple[str, str]] = {
    "host service over TCP": (
        "attempt(lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2))",
        "ECONNREFUSED",
    ),
    "host service over a unix socket": (
        "s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect(sys.argv[2]))",
        "ENOENT",
    ),
    "host service over an abstract unix socket": (
        "s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect('\\0' + sys.argv[3]))",
        "ECONNREFUSED",
    ),
    "a public address": ("attempt(lambda: socket.create_connection(('192.0.2.1', 80), 2))", "ENETUNREACH"),
    "cloud metadata": ("attempt(lambda: socket.create_connection(('169.254.169.254', 80), 2))", "ENETUNREACH"),
    "password hashes": ("attempt(lambda: open('/etc/shadow'))", "ENOENT"),
    "root's home": ("attempt(lambda: os.listdir('/root'))", "ENOENT"),
    "the root of process 1": ("attempt(lambda: os.listdir('/proc/1/root'))", "ENOENT"),
    "a world-readable secret in the host's /tmp": ("attempt(lambda: open(sys.argv[4]))", "ENOENT"),
    "writing to /usr": ("attempt(lambda: open('/usr/planted', 'w'))", "EROFS"),
    "writing to the root": ("attempt(lambda: open('/planted', 'w'))", "EROFS"),
    "writing to /proc/sys": ("attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w'))", "ENOENT"),
    "a packet socket": ("attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))", "EAFNOSUPPORT"),
    "a netlink socket": ("attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))", "EAFNOSUPPORT"),
    "a vsock": ("attempt(lambda: socket.socket(40, socket.SOCK_STREAM))", "EAFNOSUPPORT"),
    "a raw IP socket": ("attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))", "EPERM"),
    "unshare of a user namespace": ("syscall(272, 0x10000000)", "EPERM"),
    "clone into a user namespace": ("syscall(56, 0x10000000 | 17, 0, 0, 0, 0)", "EPERM"),
    "clone3, whose flags no filter can see": ("syscall(435, 0, 0)", "ENOSYS"),
    "setns": ("syscall(308, 0, 0)", "EPERM"),
    "mount": ("syscall(165, 0, 0, 0, 0, 0)", "EPERM"),
    "open_tree": ("syscall(428, -100, 0, 0)", "EPERM"),
    "fsopen": ("syscall(430, 0, 0)", "EPERM"),
    "pivot_root": ("syscall(155, 0, 0)", "EPERM"),
    "chroot": ("syscall(161, 0)", "EPERM"),
    "bpf": ("syscall(321, 0, 0, 0)", "EPERM"),
    "perf_event_open": ("syscall(298, 0, 0, 0, 0, 0)", "EPERM"),
    "io_uring_setup": ("syscall(425, 1, 0)", "EPERM"),
    "userfaultfd": ("syscall(323, 0)", "EPERM"),
    "keyctl": ("syscall(250, 0, 0, 0, 0, 0)", "EPERM"),
    "add_key": ("syscall(248, 0, 0, 0, 0, 0)", "EPERM"),
    "ptrace of oneself": ("syscall(101, 0, 0, 0, 0)", "EPERM"),
    "reading another process's memory": ("syscall(310, 1, 0, 0, 0, 0, 0)", "EPERM"),
    "taking another process's files": ("syscall(438, 0, 0, 0)", "EPERM"),
    "loading a kernel": ("syscall(246, 0, 0, 0, 0)", "EPERM"),
    "setting the clock": ("syscall(227, 0, 0)", "EPERM"),
    "becoming root": ("attempt(lambda: os.setuid(0))", "EINVAL"),
    "typing into a terminal": ("import fcntl; attempt(lambda: fcntl.ioctl(1, 0x5412, b'x'))", "EPERM"),
    "3 GB of memory": (
        "try:\n    bytearray(3 << 30)\nexcept MemoryError:\n    print('MemoryError')",
        "MemoryError",
    ),
    "a file of 600 MB": (
        "f = open('big', 'wb', 0)\nattempt(lambda: [f.write(bytes(1 << 20)) for _ in range(600)])",
        "EFBIG",
    ),
    "many files that are large together": (
        "attempt(lambda: [open(str(n), 'wb', 0).write(bytes(20 << 20)) for n in range(10)])",
        "ENOSPC",
    ),
    "20000 files": ("attempt(lambda: [open(str(n), 'w').close() for n in range(20000)])", "ENOSPC"),
    "300 open files": ("attempt(lambda: [os.open('/dev/null', 0) for _ in range(300)])", "EMFILE"),
    "shared memory": ("attempt(lambda: open('/dev/shm/x', 'w'))", "ENOENT"),
    "400 processes": (
        "import time\n"
        "def grow():\n"
        "    for _ in range(400):\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(5); os._exit(0)\n"
        "attempt(grow)",
        "EAGAIN",
    ),
    "killing everything": ("attempt(lambda: os.kill(-1, 9))", "ESRCH"),
}
