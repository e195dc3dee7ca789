"""Answers of ``/healthz`` and ``/readyz``."""

from __future__ import annotations

from typing import Literal

from api.bodies import Answer


class Health(Answer):
    status: Literal["ok"] = "ok"


class Readiness(Answer):
    """Ready when every check passes; each check is true or false by its name."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, bool]
