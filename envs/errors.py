"""What can go wrong below the agent.

EnvError
├── SandboxFailed            the sandbox could not do its work: an outage, never a reward
│   └── NoSandbox            none is usable on this machine; the reason is in the message
├── BadChange                a change that does not fit the environment (unknown kind, tool or parameter)
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


class WorkspaceRefused(EnvError):
    pass
