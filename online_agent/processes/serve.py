"""The HTTP process: uvicorn around ``api.app``.

The application is named by a string, because this package stands below ``api`` and may not import it.
"""

from __future__ import annotations

import gc
import resource
import sys

import uvicorn

from online_agent.config.environment import settings_of_environment
from online_agent.telemetry.logging import setup_logging
from online_agent.telemetry.tracing import setup_tracing

APPLICATION = "api.app:create_app"
OPEN_FILES = 65_536
"""A stream holds two sockets, the client's and the engine's; the usual soft limit is 1,024 files."""
# Time for answers under way after the episodes have drained.
_CLOSE_TIMEOUT_S = 5
_KEEP_ALIVE_S = 75
_GC_THRESHOLDS = (10_000, 20, 50)


def main() -> None:
    """Serve until SIGTERM, then drain and return."""
    settings = settings_of_environment()
    setup_logging("api", settings)
    allow_many_files()
    setup_tracing("api", settings)
    config = uvicorn.Config(
        APPLICATION,
        factory=True,
        host=settings.api.host,
        port=settings.api.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
    config.load()
    hold_pauses_short()
    server = uvicorn.Server(config)
    try:
        server.run()
    finally:
        if not server.started:  # uvicorn exits with a code and says nothing but in the log
            sys.stderr.write(f"the service did not start; {settings.logs_dir / 'api.log'} says why\n")


def hold_pauses_short() -> None:
    """What is imported is never collected, and garbage less often.

    Call it once the application is loaded: a full collection would look at all its objects, with every request waiting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def allow_many_files() -> None:
    """The soft limit on open files is ``OPEN_FILES``, or the hard one where that is less. It is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
