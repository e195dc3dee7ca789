"""API keys, idempotency keys and processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from online_agent.store.records.json import Json
from online_agent.types import Scope


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its secret, which is shown once and never stored.

    ``old_until``: until then the secret before the last rotation is good too. ``last_used_at`` is right to the minute.
    ``tokens_per_day`` bounds prompt and sampled tokens per UTC day. None: no limit, no end, never.
    """

    id: str
    tenant_id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    revoked_at: float | None
    expires_at: float | None = None
    last_used_at: float | None = None
    old_until: float | None = None
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The caller owns this key now and does the work; it must ``finish`` or ``release``."""

    kind: Literal["fresh"] = "fresh"


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done: answer with this. ``body`` is the JSON value the first answer had."""

    status: int
    body: Any
    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Running:
    """A twin is at work: wait or answer 409 with Retry-After."""

    retry_after_s: float
    kind: Literal["running"] = "running"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used with another route or body: 409."""

    route: str
    kind: Literal["mismatch"] = "mismatch"


Idempotency = Fresh | Done | Running | Mismatch


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The last heartbeat of a process. ``incarnation`` changes with each start."""

    name: str
    pid: int
    incarnation: str
    info: Json
    at: float
