"""A conversation as the chat protocols know it, without the shape of any one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class SpokenCall:
    """A tool call as a client holds it. ``arguments`` is the client's text, which need not be JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """``calls`` only for assistants. Reasoning is no part of it: clients drop it, stored ids keep it."""

    role: Role
    text: str = ""
    calls: tuple[SpokenCall, ...] = ()
