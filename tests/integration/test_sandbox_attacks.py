"""Attacks on the sandbox of this machine, each with the outcome that is right; and what the host looks like after."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import envs
from envs.errors import NoSandbox
from envs.sandbox.command import JailSpec, find_nsjail
from envs.sandbox.nsjail import NsjailSandbox
from envs.types import SandboxResult
from tests.integration.sandbox_attacks import DENIED, PRELUDE

FIRST_UID = 25_001
MAX_JOBS = 3


@pytest.fixture(scope="module")
def sandbox() -> Iterator[NsjailSandbox]:
    box = NsjailSandbox(max_jobs=MAX_JOBS, max_output_bytes=10_000, first_uid=FIRST_UID)
    yield box
    asyncio.run(box.close())


@pytest.fixture
async def host_service(tmp_path: Path) -> AsyncIterator[list[str]]:
    """A service of the host on TCP, on a unix socket and on an abstract one, and a secret that all may read."""
    path = Path("/tmp") / f"service-{os.getpid()}.sock"
    secret = Path("/tmp") / f"secret-{os.getpid()}"
    secret.write_text("do not read")
    secret.chmod(0o644)
    abstract = f"service-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        unix.bind(str(path))
        path.chmod(0o777)
        unix.listen()
        hidden.bind("\0" + abstract)
        hidden.listen()
        yield [str(tcp.getsockname()[1]), str(path), abstract, str(secret)]
    path.unlink()
    secret.unlink()


async def python(sandbox: NsjailSandbox, script: str, *arguments: str, timeout_s: float = 10.0) -> SandboxResult:
    argv = ["/usr/bin/python3", "-I", "-S", "attack.py", *arguments]
    return await sandbox.run(argv, {"attack.py": script}, timeout_s=timeout_s)


async def shell(sandbox: NsjailSandbox, line: str, timeout_s: float = 10.0, program: str = "sh") -> SandboxResult:
    return await sandbox.run([program, "-c", line], {}, timeout_s=timeout_s)


def processes_with(marker: str) -> list[int]:
    """Processes of the jails' users with the marker in their command line."""
    users = range(FIRST_UID, FIRST_UID + 5000) if os.geteuid() == 0 else [os.geteuid()]
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            if os.stat(f"/proc/{pid}").st_uid in users and marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("attack", DENIED)
async def test_attack_is_denied(sandbox: NsjailSandbox, host_service: list[str], attack: str) -> None:
    script, outcome = DENIED[attack]
    result = await python(sandbox, PRELUDE + script, *host_service)
    assert result.output.strip() == outcome
    assert not result.is_timeout


async def test_the_attacks_do_succeed_without_a_jail(host_service: list[str]) -> None:
    """Guards the list itself: unprotected, the host's service, secret and files are within reach."""
    reached = []
    for attack in (
        "host service over TCP",
        "host service over a unix socket",
        "host service over an abstract unix socket",
        "a world-readable secret in the host's /tmp",
    ):
        process = await asyncio.create_subprocess_exec(
            *("/usr/bin/python3", "-I", "-S", "-c", PRELUDE + DENIED[attack][0], *host_service),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        reached.append(out.decode().strip())
    assert reached == ["succeeded"] * 4


async def test_fork_bomb_ends_at_the_deadline_and_the_next_job_runs(sandbox: NsjailSandbox) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    result = await python(sandbox, bomb, timeout_s=1.0)
    assert result.is_timeout
    assert result.wall_s < 6
    assert (await python(sandbox, "print('next')")).output == "next\n"


async def test_double_forked_daemon_dies_with_its_job(sandbox: NsjailSandbox) -> None:
    daemon = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execv('/usr/bin/sleep', ['daemon-left-behind', '300'])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('started')"
    )
    result = await python(sandbox, daemon)
    assert (result.output, result.exit_code) == ("started\n", 0)
    assert processes_with("daemon-left-behind") == []


async def test_job_that_ignores_every_signal_ends_at_the_deadline(sandbox: NsjailSandbox) -> None:
    stubborn = (
        "import os, signal\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "print('still here', flush=True)\n"
        "while True: pass"
    )
    result = await python(sandbox, stubborn, timeout_s=1.0)
    assert result.is_timeout
    assert result.exit_code == 124
    assert result.wall_s < 3
    assert result.output.startswith("still here\n")


async def test_output_flood_is_cut_and_the_job_killed_long_before_its_deadline(sandbox: NsjailSandbox) -> None:
    result = await shell(sandbox, "yes", timeout_s=30)
    assert len(result.output) == 10_000
    assert result.is_output_truncated
    assert not result.is_timeout
    assert result.exit_code == 137
    assert result.wall_s < 5


async def test_output_a_little_over_the_cap_is_cut_but_the_job_ends_by_itself(sandbox: NsjailSandbox) -> None:
    result = await python(sandbox, "print('x' * 20_000); raise SystemExit(3)")
    assert (len(result.output), result.is_output_truncated, result.exit_code) == (10_000, True, 3)


async def test_kill_of_everything_spares_the_job_next_door(sandbox: NsjailSandbox) -> None:
    neighbour = asyncio.create_task(python(sandbox, "import time; time.sleep(1); print('alive')"))
    await asyncio.sleep(0.3)
    await shell(sandbox, "kill -9 -1")
    assert (await neighbour).output == "alive\n"


async def test_job_sees_no_environment_and_no_descriptor_of_the_host(
    sandbox: NsjailSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_SECRET", "hunter2")
    kept = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(kept, True)
    fresh = NsjailSandbox(max_jobs=1, first_uid=FIRST_UID + 50)
    script = (
        "import os\n"
        "print(sorted(os.environ))\n"
        "found = []\n"
        "for fd in range(256):\n"
        "    try:\n"
        "        os.fstat(fd); found.append(fd)\n"
        "    except OSError:\n"
        "        pass\n"
        "print(found, os.read(0, 10))"
    )
    try:
        result = await python(fresh, script)
    finally:
        os.close(kept)
        await fresh.close()
    assert result.output == "['HOME', 'LANG', 'PATH']\n[0, 1, 2] b''\n"


async def test_each_job_starts_from_an_empty_jail(sandbox: NsjailSandbox) -> None:
    plant = "import os\nopen('/tmp/planted', 'w').close(); open('here', 'w').close(); print('ok')"
    look = "import os\nprint(os.listdir('/tmp'), os.listdir('.'))"
    for _ in range(MAX_JOBS):
        assert (await python(sandbox, plant)).output == "ok\n"
        assert (await python(sandbox, look)).output == "['workspace'] ['attack.py']\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user has one uid to give")
async def test_concurrent_jobs_and_verifiers_run_as_different_users(sandbox: NsjailSandbox) -> None:
    argv = ["/usr/bin/python3", "-I", "-S", "nap.py"]
    naps = {"nap.py": "import os\nos.execv('/usr/bin/sleep', ['nap-of-a-job', '1'])"}
    jobs = [
        asyncio.create_task(sandbox.run(argv, naps, timeout_s=10, as_verifier=as_verifier))
        for as_verifier in (False, False, True)
    ]
    await asyncio.sleep(0.6)
    uids = sorted(os.stat(f"/proc/{pid}").st_uid for pid in processes_with("nap-of-a-job"))
    await asyncio.gather(*jobs)
    assert uids == [FIRST_UID, FIRST_UID + 1, FIRST_UID + MAX_JOBS]


async def test_cancelled_job_is_killed_at_once(sandbox: NsjailSandbox) -> None:
    script = "import os\nos.execv('/usr/bin/sleep', ['sleeper-to-cancel', '60'])"
    job = asyncio.create_task(python(sandbox, script, timeout_s=60))
    await asyncio.sleep(0.5)
    assert processes_with("sleeper-to-cancel") != []
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    await asyncio.sleep(0.2)
    assert processes_with("sleeper-to-cancel") == []
    assert (await python(sandbox, "print('next')")).output == "next\n"


@pytest.mark.parametrize(
    ("line", "text", "marker"),
    [
        ("sleep 60 & echo done", "done\n", "sleep\x0060"),
        ("setsid sleep 61 & echo done2", "done2\n", "sleep\x0061"),
        ("python3 -m http.server 8123 & sleep 1; echo up", "up\n", "http.server\x008123"),
    ],
)
async def test_c27_background_child_does_not_hold_the_call(
    sandbox: NsjailSandbox, line: str, text: str, marker: str
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    began = time.monotonic()
    ticker = asyncio.create_task(tick())
    result = await shell(sandbox, line, timeout_s=10)
    took_s = time.monotonic() - began
    ticker.cancel()
    assert (result.output, result.exit_code) == (text, 0)
    assert took_s < 3
    assert processes_with(marker) == []
    assert ticks + 1 >= 20 * took_s, "the event loop was blocked"


async def test_c28_bytes_that_are_not_utf8_become_replacement_characters(sandbox: NsjailSandbox) -> None:
    result = await shell(sandbox, r"printf '\xf0\xff ok'", program="bash")
    assert (result.output, result.exit_code) == ("�� ok", 0)
    assert result.output.encode().decode() == result.output


async def test_c28_random_bytes_do_not_fail(sandbox: NsjailSandbox) -> None:
    result = await shell(sandbox, "head -c 300 /dev/urandom", program="bash")
    assert result.exit_code == 0
    assert result.output
    assert result.output.encode().decode() == result.output


async def test_c28_character_split_in_time_is_one_character(sandbox: NsjailSandbox) -> None:
    result = await shell(sandbox, r"printf '\xe2'; sleep 1; printf '\x82\xac'", program="bash")
    assert result.output == "€"


async def test_nothing_runs_where_nsjail_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nsjail").mkdir()
    (tmp_path / "nsjail" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nsjail", raising=False)
    with pytest.raises(NoSandbox, match="never run unsandboxed"):
        NsjailSandbox()


@pytest.mark.parametrize(
    ("taken_away", "put_in", "found"),
    [
        ("--disable_proc", ["--disable_proc", "--disable_clone_newnet"], "host-network"),
        ("--disable_proc", ["--disable_proc", "--bindmount_ro", "/etc"], "host-files"),
        ("--seccomp_policy", ["--seccomp_string", "POLICY p {} USE p DEFAULT ALLOW", "--env"], "system-calls"),
    ],
)
async def test_nothing_runs_in_a_jail_that_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, taken_away: str, put_in: list[str], found: str
) -> None:
    whole = JailSpec.argv

    def leaky(spec: JailSpec) -> list[str]:
        argv = whole(spec)
        at = argv.index(taken_away)
        return [*argv[:at], *put_in, *argv[at + 1 :]]

    monkeypatch.setattr(JailSpec, "argv", leaky)
    box = NsjailSandbox(max_jobs=1, first_uid=FIRST_UID + 60)
    try:
        with pytest.raises(NoSandbox, match=found):
            await shell(box, "echo ran")
    finally:
        await box.close()


async def test_nsjail_that_cannot_open_a_jail_is_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = JailSpec.argv
    monkeypatch.setattr(
        JailSpec, "argv", lambda spec: [*whole(spec)[:5], "--bindmount_ro", "/nowhere", *whole(spec)[5:]]
    )
    box = NsjailSandbox(max_jobs=1)
    try:
        with pytest.raises(NoSandbox, match="no jail could be opened"):
            await box.probe()
    finally:
        await box.close()


HOST = """
import asyncio, sys
from envs.sandbox.nsjail import NsjailSandbox

async def main():
    sandbox = NsjailSandbox(max_jobs=1, first_uid=25_101)
    result = await sandbox.run(["sh", "-c", "id -u; echo left > f; exit 3"], {}, timeout_s=20, collect_files=True)
    print(result.output.strip(), result.exit_code, result.files["f"].strip(), flush=True)
    job = {"nap.py": "import os; os.execv('/usr/bin/sleep', [" + repr(sys.argv[1]) + ", '60'])"}
    await sandbox.run(["/usr/bin/python3", "-I", "-S", "nap.py"], job, timeout_s=60)

asyncio.run(main())
"""


async def start_host(marker: str, *prefix: str) -> asyncio.subprocess.Process:
    """Another process with a sandbox of its own, whose second job sleeps under the marker's name."""
    paths = [str(Path(envs.__file__).parents[1]), str(find_nsjail().parents[2])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    return await asyncio.create_subprocess_exec(
        *(*prefix, "/usr/bin/python3", "-c", HOST, marker), env=environment, stdout=asyncio.subprocess.PIPE
    )


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come true within ten seconds")


async def test_jails_die_with_the_process_that_opened_them() -> None:
    marker = "job-of-a-killed-host"
    host = await start_host(marker)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"1000 3 left\n"
    sleeping = f"{marker}\x0060"
    await until(lambda: processes_with(sleeping) != [])
    host.kill()
    await host.wait()
    await until(lambda: processes_with(sleeping) == [])


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user runs all the other tests as such already")
async def test_sandbox_works_for_a_normal_user_too() -> None:
    marker = "job-of-a-normal-user"
    host = await start_host(marker, "/usr/bin/setpriv", "--reuid=27777", "--regid=27777", "--clear-groups")
    assert host.stdout is not None
    assert await host.stdout.readline() == b"1000 3 left\n"
    await until(lambda: processes_with(f"{marker}\x0060") != [])
    assert {os.stat(f"/proc/{pid}").st_uid for pid in processes_with(f"{marker}\x0060")} == {27777}
    host.kill()
    await host.wait()
