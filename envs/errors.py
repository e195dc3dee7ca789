"""What can go wrong below the agent.

EnvError
├── SandboxFailed            the sandbox could not do its work: an outage, never a reward
│   └── NoSandbox            none is usable on this machine; the reason is in the message
├── BadChange                a change that does not fit the environment (unknown kind, tool or parameter)
├── BadTask                  a task given with a request that cannot be worked on or graded; ``field`` says what of it
└── WorkspaceRefused         a file operation of the agent that is not allowed or finds nothing; its text is the answer
"""

from __future__ import annotations


class EnvError(Exception):
    """Base of every error this package raises on purpose."""


class SandboxFailed(EnvError):
    pass


class NoSandbox(SandboxFailed):
    pass


class BadChange(EnvError):
    pass


class BadTask(EnvError):
    """``field`` is the dotted name within the task, empty for the task as a whole."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class WorkspaceRefused(EnvError):
    pass


MAX_QUOTED_CHARS = 100


def quoted(value: object, max_chars: int = MAX_QUOTED_CHARS) -> str:
    """The value as a person would type it, cut to a length that is safe to send back."""
    text = repr(value)
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
