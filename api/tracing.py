"""HTTP server spans: FastAPI makes them, in the trace that the caller began where it sends ``traceparent``."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from online_agent.telemetry import tracing

TRACE_HEADER = "X-Trace-Id"
UNTRACED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: they would drown everything else."""


def server_spans() -> TelemetryConfig:
    """One span a request and nothing else: FastAPI's own metrics are ours, its logs would hold what clients sent."""
    return {
        "tracer_provider": tracing.provider(),
        "tracing": tracing.is_on(),
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
        "exclude": _is_untraced,
    }


class TellTraceId:
    """ASGI middleware: every answer names its trace, so that a client's report of a fault leads to it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        under_way = tracing.trace_id() if scope["type"] == "http" else None
        if under_way is None:
            await self.app(scope, receive, send)
            return

        async def tell_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[TRACE_HEADER] = under_way
            await send(message)

        await self.app(scope, receive, tell_and_send)


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    return scope.get("path") in UNTRACED_PATHS
