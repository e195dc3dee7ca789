"""Starts and stops one SGLang server: its arguments, its environment, its process group.

Invariants
- The server starts on the weights it is to serve, under their version: it never answers with others.
- Keys travel in a file that only this user reads, never in the argument list; the server's own log is kept at a level
  that does not print its configuration.
- Only the process started here, its descendants and its session are ever signalled, by pid.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psutil

from online_agent.config.serving import EngineSettings
from online_agent.config.training import LoraSettings
from online_agent.errors import ConfigError
from online_agent.serving.experts import recorded_experts
from online_agent.supervisor.lifeline import die_with_parent
from online_agent.weights.adapter import adapter_name, base_serving_dir, is_adapter, read_rank

CPU_STUB_DIR = Path(__file__).parent / "cpu_stub"
STOP_GRACE_S = 15.0
"""SGLang needs up to ten seconds to take its children down, five of them a fixed sleep."""

KILL_GRACE_S = 5.0
POLL_S = 0.05

CPU_ARGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--cuda-graph-backend-decode=disabled",
    "--cuda-graph-backend-prefill=disabled",
    # With overlap on, the first token after a swap can carry the wrong version label.
    "--disable-overlap-schedule",
    # Without it the idle scheduler takes a whole core.
    "--sleep-on-idle",
    "--mem-fraction-static=0.2",
)

ADAPTERS_PER_BATCH = 4
"""The base, the adapter that serves, the one before it, and one that is being tried by its probe."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)


def context_length(settings: EngineSettings, serving_dir: Path) -> int:
    """Longest prompt plus answer, in tokens: the configured length, or the model's own where that is less."""
    config_file = serving_dir / "config.json"
    try:
        config = orjson.loads(config_file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {config_file}: {error}") from error
    own = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return min(settings.context_length, int(own)) if own else settings.context_length


def engine_command(
    settings: EngineSettings,
    serving_dir: Path,
    version: int,
    port: int,
    key_file: Path | None,
    lora: LoraSettings | None = None,
) -> EngineCommand:
    """What to run to serve ``serving_dir`` as ``version`` on 127.0.0.1:``port``; with ``lora``, also adapters over it.

    Raises ConfigError for a version that is an adapter when there is no ``lora``.
    """
    argv = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        *(["--config", str(key_file)] if key_file else []),
        f"--model-path={base_serving_dir(serving_dir)}",
        f"--weight-version={version}",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--dtype={settings.dtype}",
        f"--context-length={context_length(settings, serving_dir)}",
        f"--max-total-tokens={settings.max_total_tokens}",
        f"--max-running-requests={settings.max_running_requests}",
        *_grammar_args(settings),
        # Each event of a stream holds what is new, not everything up to then: linear in the length, not quadratic.
        "--incremental-streaming-output",
        "--log-level=warning",
        *(CPU_ARGS if settings.device == "cpu" else ()),
        *(["--enable-return-routed-experts"] if recorded_experts(settings, serving_dir) else []),
        *_adapter_args(settings, serving_dir, version, lora),
        *settings.extra_args,
    ]
    return EngineCommand(tuple(argv), _environment(settings))


def _grammar_args(settings: EngineSettings) -> tuple[str, ...]:
    """Token ids go in and come out; text is made by the renderer. Only a grammar has to know what the ids spell."""
    if settings.grammar_backend == "none":
        return ("--grammar-backend=none", "--skip-tokenizer-init")
    # A grammar with room for any white space lets a model fill its answer with it.
    return (f"--grammar-backend={settings.grammar_backend}", "--constrained-json-disable-any-whitespace")


def _adapter_args(
    settings: EngineSettings, serving_dir: Path, version: int, lora: LoraSettings | None
) -> tuple[str, ...]:
    if lora is None:
        if is_adapter(serving_dir):
            raise ConfigError(f"version {version} is an adapter: set learner.actor = 'lora' to serve it")
        return ()
    rank, held = lora.rank, []
    if is_adapter(serving_dir):
        # A version that was trained at a larger rank is served all the same.
        rank = max(rank, read_rank(serving_dir))
        held = ["--lora-paths", f"{adapter_name(version)}={serving_dir}"]
    return (
        "--enable-lora",
        "--lora-strict-loading",
        f"--max-loras-per-batch={ADAPTERS_PER_BATCH}",
        f"--max-lora-rank={rank}",
        # The other backends are made of triton kernels.
        *(["--lora-backend=torch_native"] if settings.device == "cpu" else []),
        *held,
        "--lora-target-modules",
        *lora.target_modules,
    )


def _environment(settings: EngineSettings) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("ONLINE_AGENT_")}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(settings.num_threads)}
    env["SGLANG_FORWARD_UNKNOWN_TOOLS"] = "1"  # a call of a tool that is not there is a call: its agent says so
    if settings.device == "cpu":
        inherited = env.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join([str(CPU_STUB_DIR), *([inherited] if inherited else [])])
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    return env


class EngineProcess:
    """One server process. Make a new object for each start; ``start`` and ``stop`` do not raise on a dead process."""

    def __init__(
        self,
        settings: EngineSettings,
        serving_dir: Path,
        version: int,
        *,
        port: int,
        run_dir: Path,
        lora: LoraSettings | None = None,
    ) -> None:
        """``run_dir`` receives the key file and ``engine.log``; ``lora`` is the size of adapters to make room for."""
        self.url = f"http://127.0.0.1:{port}"
        self.version = version
        self.log_file = run_dir / "engine.log"
        self._settings, self._serving_dir, self._port, self._run_dir = settings, serving_dir, port, run_dir
        self._lora = lora
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs (and before it was started)."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """The server process exists and loads its weights; ``readiness.wait_ready`` says when it can be used."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        command = engine_command(
            self._settings, self._serving_dir, self.version, self._port, self._write_keys(), self._lora
        )
        log = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                command.argv,
                env=command.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        finally:
            os.close(log)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """The server and every process it started are gone: asked first, killed after ``grace_s``."""
        if self._process is None:
            return
        family = _family(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        for process in self._left_after(grace_s, family):
            process.kill()
        self._left_after(KILL_GRACE_S, family)
        self._process.wait()

    def _left_after(self, timeout_s: float, family: list[psutil.Process]) -> list[psutil.Process]:
        """Who of the family still runs once all are gone or the time is over."""
        deadline = time.monotonic() + timeout_s
        while (alive := _alive(family)) and time.monotonic() < deadline:
            if self._process is not None:
                self._process.poll()  # reaps it
            time.sleep(POLL_S)
        return alive

    def log_tail(self, max_bytes: int = 4000) -> str:
        """The end of the server's log, to say why it did not start."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - max_bytes))
            return log.read().decode(errors="replace")

    def _write_keys(self) -> Path | None:
        key = self._settings.api_key.get_secret_value()
        if not key:
            return None
        key_file = self._run_dir / "engine_keys.yaml"
        descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # JSON is YAML. One key for both: the admin routes refuse a missing admin key with the api key alone.
            file.write(orjson.dumps({"api-key": key, "admin-api-key": key}))
        return key_file


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. An orphan that nobody reaps stays a zombie for ever: it runs no more."""
    alive = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def _family(pid: int) -> list[psutil.Process]:
    """The process, its descendants, and all of the session it leads: children outlive a parent that was killed.

    A process is known by pid and start time, so a reused pid is not mistaken for it.
    """
    family: set[psutil.Process] = set()
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        family.update((leader, *leader.children(recursive=True)))
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == pid:
                family.add(process)
    return list(family)
