"""The processes that are compared: the scripted engine, and what may stand before it. All of them end with their block.

Each is one process of one worker, set up as its own documentation says for production, without a log line a request.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import URLError

import online_agent.seed_policy
from benchmarks.proxies.engine import Script
from online_agent.config.settings import Settings
from online_agent.rendering import ChatRenderer
from online_agent.store.session import Database
from online_agent.supervisor.bootstrap import import_seed
from online_agent.types import Scope
from online_agent.weights.store import WeightStore

MODEL = "online-agent"
ANSWER = "The two numbers are subtracted where they have to be added: change the minus in calc.py to a plus."
ENGINE_DELAY_S = 0.05
START_TIMEOUT_S = 180.0
_NO_BROKER = "redis://127.0.0.1:1/0"
_CHECKPOINT = Path(online_agent.seed_policy.__file__).parent / "checkpoint"


@dataclass(frozen=True, slots=True)
class Side:
    """Where chat completions are asked for, and with which headers. ``pid`` is the process that answers."""

    name: str
    base_url: str
    headers: dict[str, str]
    pid: int

    @property
    def chat_url(self) -> str:
        return f"{self.base_url}/v1/chat/completions"


def make_script(delay_s: float = ENGINE_DELAY_S, token_delay_s: float = 0.0, text: str = ANSWER) -> Script:
    """How the seed policy's tokenizer writes ``text``."""
    renderer = ChatRenderer.load(_CHECKPOINT)
    ids = renderer.encode_text(text).tolist()
    return Script([*ids, renderer.stop_token_ids[0]], [renderer.decode([one]) for one in ids], delay_s, token_delay_s)


@contextmanager
def scripted_engine(script: Script) -> Iterator[Side]:
    command = [sys.executable, "-m", "benchmarks.proxies.engine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asdict(script)))
            process.stdin.close()
            yield Side("engine", process.stdout.readline().strip(), {}, process.pid)
        finally:
            process.kill()


@contextmanager
def service(engine: Side, data_dir: Path) -> Iterator[Side]:
    """``online-agent serve`` on a fresh SQLite database under ``data_dir``."""
    port, secret = free_port(), _prepared(data_dir)
    environment = {
        "ONLINE_AGENT_DATA_DIR": str(data_dir),
        "ONLINE_AGENT_ENGINE__URL": engine.base_url,
        "ONLINE_AGENT_BROKER__URL": _NO_BROKER,
        "ONLINE_AGENT_API__PORT": str(port),
    }
    command = [sys.executable, "-m", "online_agent.cli.main", "serve"]
    with _running(command, environment, data_dir / "serve.log") as process:
        side = Side("ours", f"http://127.0.0.1:{port}", {"authorization": f"Bearer {secret}"}, process.pid)
        _until_ready(side, "/healthz", process)
        yield side


def _prepared(data_dir: Path) -> str:
    """The seed policy serves; returns the secret of a key."""
    settings = Settings(data_dir=data_dir)
    db = Database(settings.database_url)
    db.migrate()
    import_seed(db, WeightStore(settings.weights_dir), str(_CHECKPOINT))
    with db.transaction() as tx:
        _, secret = tx.keys.create("bench", "bench", [Scope.AGENT, Scope.OPERATOR])
    db.close()
    return secret


@contextmanager
def litellm(engine: Side, python: Path, directory: Path) -> Iterator[Side]:
    """LiteLLM's proxy of the environment that ``python`` belongs to."""
    port, key = free_port(), f"sk-{secrets.token_hex(16)}"
    config = directory / "litellm.yaml"
    upstream = {"model": f"openai/{MODEL}", "api_base": f"{engine.base_url}/v1", "api_key": "none"}
    config.write_text(  # JSON is YAML
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
                "general_settings": {"master_key": key},
                "litellm_settings": {"set_verbose": False, "json_logs": True, "num_retries": 0},
            }
        )
    )
    environment = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    command = [str(python.parent / "litellm"), *arguments, "--telemetry", "False"]
    with _running(command, environment, directory / "litellm.log") as process:
        side = Side("litellm", f"http://127.0.0.1:{port}", {"authorization": f"Bearer {key}"}, process.pid)
        _until_ready(side, "/health/liveliness", process)
        yield side


@contextmanager
def reef(engine: Side, python: Path, directory: Path) -> Iterator[Side]:
    """Reef's service before an OpenAI upstream, with the recipe that only records.

    This is the process that ``reef serve`` starts and watches. Its capture of token ids needs an engine that it starts
    itself, on a GPU.
    """
    port, token, home = free_port(), secrets.token_hex(16), directory / "reef"
    home.mkdir()
    settings = {
        "recipe": "recipe",
        "host": "127.0.0.1",
        "port": port,
        "token": token,
        "upstream_url": f"{engine.base_url}/v1",
        "upstream_model": MODEL,
        "upstream_api_key": "none",
        "artifact_repository": str(home / "artifacts.git"),
        "artifact_work_dir": str(home / "artifacts"),
        "artifact_cache_dir": str(home / "cache"),
        "agent_record_dir": str(home / "records"),
    }
    config = directory / "reef.yaml"
    config.write_text(json.dumps({"reef": settings}))  # JSON is YAML
    command = [str(python), "-m", "reef.service"]
    with _running(command, {"HOME": str(home), "REEF_CONFIG": str(config)}, directory / "reef.log") as process:
        headers = {"authorization": f"Bearer {token}", "x-reef-scenario": "bench"}
        side = Side("reef", f"http://127.0.0.1:{port}", headers, process.pid)
        _until_ready(side, "/healthz", process)
        yield side


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], log_file: Path
) -> Iterator[subprocess.Popen[bytes]]:
    everything = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with (
        log_file.open("wb") as log,
        subprocess.Popen(list(command), env=everything, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _until_ready(side: Side, path: str, process: subprocess.Popen[bytes]) -> None:
    """The side answers. Raises RuntimeError when it ended, or does not answer within ``START_TIMEOUT_S``."""
    deadline = time.monotonic() + START_TIMEOUT_S
    request = urllib.request.Request(side.base_url + path, headers=side.headers)
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except (URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"{side.name} did not start: see its log")
