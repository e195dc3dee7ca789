"""JSON logs, one object a line, with the ids of what is being worked on bound to each line.

Every process writes ``<data_dir>/logs/<process>.log``. Lines of libraries that use the standard ``logging`` module
go to the same file in the same shape. Files are opened for appending and reopened when they were moved away.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from logging.handlers import WatchedFileHandler
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from online_agent.config.settings import Settings
from online_agent.telemetry.redaction import redact
from online_agent.telemetry.tracing import trace_id

# Chatty at INFO: one line per HTTP request or per queue poll.
_QUIET_LIBRARIES = (
    "httpx",
    "httpcore",
    "urllib3",
    "asyncio",
    "celery.beat",
    "celery.worker.strategy",
    "celery.app.trace",
    "kombu",
    "filelock",
)


def _redaction(settings: Settings) -> Processor:
    """No line holds a secret of a known form, nor one of the patterns of the configuration."""
    forms = settings.redaction.redactor()

    def redacted(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        line: EventDict = redact(event, forms)
        return line

    return redacted


def _add_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A line that was logged inside a span can be found by its trace."""
    under_way = trace_id()
    if under_way is not None:
        event["trace_id"] = under_way
    return event


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_trace_id,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def setup_logging(process: str, settings: Settings) -> None:
    """Every line of this process goes to its log file as JSON, bound to ``process``. Call once, at the start."""
    settings.logs_dir.mkdir(parents=True, exist_ok=True)
    handler = WatchedFileHandler(settings.logs_dir / f"{process}.log", encoding="utf-8")
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared_processors(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _redaction(settings),
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(process=process)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; ids given as keyword arguments (``episode=``, ``step=``, ``version=``) become fields of the line."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bound(**ids: Any) -> AbstractContextManager[None]:
    """Context manager: every line logged inside carries these ids, also lines of libraries."""
    return structlog.contextvars.bound_contextvars(**ids)
