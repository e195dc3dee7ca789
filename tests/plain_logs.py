"""Log lines of tests: structlog's own, but tracebacks as Python prints them.

Its default colours them and shows every local variable of every frame, which takes seconds for one exception.
"""

import structlog


def log_plainly() -> None:
    """Forgets what was configured."""
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])
