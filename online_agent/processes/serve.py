"""The HTTP process: uvicorn around ``api.app``.

The application is named by a string, because this package stands below ``api`` and may not import it.
"""

from __future__ import annotations

import uvicorn

from online_agent.config.environment import settings_of_environment
from online_agent.telemetry.logging import setup_logging
from online_agent.telemetry.tracing import setup_tracing

APPLICATION = "api.app:create_app"
# Time for answers under way after the episodes have drained.
_CLOSE_TIMEOUT_S = 5
_KEEP_ALIVE_S = 75


def main() -> None:
    """Serve until SIGTERM, then drain and return."""
    settings = settings_of_environment()
    setup_logging("api", settings)
    setup_tracing("api", settings)
    uvicorn.run(
        APPLICATION,
        factory=True,
        host=settings.api.host,
        port=settings.api.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
