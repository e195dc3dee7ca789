"""Which processes run on one machine, on which ports, with which environment.

Dependence: api → engine, broker; worker → engine, broker; learner → database only. So the broker starts first, then all
others together; the api drains first (its episodes still need the engine and the grader), then learner, worker, engine.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from online_agent.config.settings import Settings
from online_agent.jobs.redis import is_redis_up, prepare_redis
from online_agent.supervisor.child import ChildSpec
from online_agent.supervisor.readiness import answers_http, has_announced
from online_agent.supervisor.supervisor import Plan

# Time beyond the api's own drain for closing its connections.
_DRAIN_MARGIN_S = 5.0
_LEARNER_STOP_S = 30.0
_ENGINE_STOP_S = 30.0
# Beyond the engine's own start-up time, so that its process says itself why it was too slow.
_START_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """A plan and where the api will answer."""

    plan: Plan
    api_url: str


def plan_deployment(settings: Settings) -> Deployment:
    """Choose ports and passwords, write the broker's configuration, and describe every process. Starts nothing."""
    engine_url = settings.engine.url or f"http://127.0.0.1:{free_port()}"
    api_port = settings.api.port or free_port(settings.api.host)
    shared: dict[str, str] = {
        "ONLINE_AGENT_DATA_DIR": str(settings.data_dir.resolve()),
        "ONLINE_AGENT_ENGINE__URL": engine_url,
        "ONLINE_AGENT_ENGINE__API_KEY": settings.engine.api_key.get_secret_value() or secrets.token_urlsafe(32),
        "ONLINE_AGENT_API__PORT": str(api_port),
        **_threads(1),
    }
    stages: list[list[ChildSpec]] = []
    if settings.broker.url:
        broker_url = settings.broker.url
    else:
        server = prepare_redis(settings.data_dir / "redis", free_port())
        broker_url = server.url
        stages.append([ChildSpec("redis", server.argv, lambda _pid: is_redis_up(server.url), start_timeout_s=15.0)])
    shared["ONLINE_AGENT_BROKER__URL"] = broker_url
    stages.append(_processes(settings, shared, api_port))
    started = {spec.name for stage in stages for spec in stage}
    stop_order = [name for name in ("api", "learner", "worker", "engine", "redis") if name in started]
    return Deployment(Plan(stages, stop_order), f"http://{_reachable(settings.api.host)}:{api_port}")


def _processes(settings: Settings, env: Mapping[str, str], api_port: int) -> list[ChildSpec]:
    start_s = settings.engine.start_timeout_s + _START_MARGIN_S
    data_dir = settings.data_dir
    processes = [
        ChildSpec(
            "learner",
            _command("learn"),
            lambda pid: has_announced(data_dir, "learner", pid),
            {**env, **_threads(settings.learner.num_threads)},
            start_timeout_s=start_s,
            stop_timeout_s=_LEARNER_STOP_S,
        ),
        ChildSpec(
            "worker",
            _command("work"),
            lambda pid: has_announced(data_dir, "worker", pid),
            env,
            start_timeout_s=start_s,
            stop_timeout_s=_DRAIN_MARGIN_S + settings.engine.swap_timeout_s,
        ),
        ChildSpec(
            "api",
            _command("serve"),
            lambda _pid: answers_http(_reachable(settings.api.host), api_port, "/healthz"),
            env,
            start_timeout_s=start_s,
            stop_timeout_s=settings.api.drain_timeout_s + _DRAIN_MARGIN_S,
        ),
    ]
    if settings.engine.url:
        return processes
    engine = ChildSpec(
        "engine",
        _command("engine"),
        lambda pid: has_announced(data_dir, "engine", pid),
        {**env, **_threads(settings.engine.num_threads)},
        start_timeout_s=start_s,
        stop_timeout_s=_ENGINE_STOP_S,
    )
    return [engine, *processes]


def write_api_file(settings: Settings, url: str, key_file: Path, pids: Mapping[str, int]) -> Path:
    """``<data_dir>/run/api.json``: where the service answers, once everything is ready."""
    path = api_file(settings.data_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"url": url, "key_file": str(key_file.resolve()), "pids": dict(pids)}, indent=2))
    temporary.rename(path)
    return path


def api_file(data_dir: Path) -> Path:
    return data_dir / "run" / "api.json"


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def _command(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "online_agent.cli.main", name)


def _threads(count: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    return {name: str(count) for name in names} | {"TOKENIZERS_PARALLELISM": "false"}
