"""The HTTP application.

``uvicorn --factory api.app:create_app`` reads its settings from ``ONLINE_AGENT_CONFIG`` (a TOML file) and the
environment (``ONLINE_AGENT_*``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute

from api import errors
from api.adaptation.router import router as adaptation
from api.auth import Authentication
from api.changes.router import router as changes
from api.chat.router import router as chat
from api.clients.router import router as clients
from api.dashboard.router import router as dashboard
from api.envs.router import router as envs
from api.episodes.router import router as episodes
from api.events.router import router as events
from api.feedback.quarantine import router as quarantine
from api.feedback.router import router as feedback
from api.health.router import router as health
from api.keys.router import router as keys
from api.messages.router import router as messages
from api.metrics import CountRequests
from api.openapi import describe
from api.people.router import router as people
from api.responses.router import router as responses
from api.runtime import Runtime
from api.shutdown import draining_on_sigterm
from api.start import open_runtime
from api.tenants.router import router as tenants
from api.tracing import TellTraceId, server_spans
from api.training.router import router as training
from api.transfer.router import router as transfer
from api.weights.router import router as weights
from online_agent.config.environment import settings_of_environment
from online_agent.config.settings import Settings
from online_agent.telemetry import tracing

ROUTERS = (
    chat,
    messages,
    responses,
    clients,
    transfer,
    episodes,
    feedback,
    quarantine,
    people,
    weights,
    training,
    envs,
    changes,
    adaptation,
    events,
    keys,
    tenants,
    health,
    dashboard,
)

OpenRuntime = Callable[[Settings], AbstractAsyncContextManager[Runtime]]


def create_app(settings: Settings | None = None, opener: OpenRuntime = open_runtime) -> FastAPI:
    """The application; ``opener`` builds what its handlers reach when the server starts and closes it when it ends."""
    settings = settings or settings_of_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opener(settings) as runtime:
                app.state.runtime = runtime
                with draining_on_sigterm(runtime):
                    yield
        finally:
            # Here and not behind the server: uvicorn ends by the signal that it was sent.
            await asyncio.to_thread(tracing.shut_down_tracing)

    app = FastAPI(
        title="online-agent",
        version="0.1.0",
        description="A coding agent that keeps learning in production.",
        lifespan=lifespan,
        docs_url=None,  # the bundled pages load scripts from elsewhere; /openapi.json is the reference
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
        telemetry=server_spans(),
    )
    app.state.settings = settings
    errors.install(app)
    app.add_middleware(Authentication)
    app.add_middleware(CountRequests)
    if tracing.is_on():
        app.add_middleware(TellTraceId)
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    return app


def operation_id(route: APIRoute) -> str:
    return route.name
