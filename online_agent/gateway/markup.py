"""The text of an answer, read while it is sampled: reasoning, text and tool calls come apart.

Invariants
- The same text gives the same answer, however it is cut into pieces.
- Only a call that can be read becomes one. What looks like a call and cannot be read (cut off, not JSON) stays text,
  so nobody runs it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import orjson

from online_agent.rendering.messages import SpokenCall
from online_agent.rendering.tool_calls import CLOSE_TAG, OPEN_TAG, parse_tool_calls

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The ``index``-th call of the answer. ``arguments`` is JSON text of an object."""

    index: int
    id: str
    name: str
    arguments: str

    @property
    def spoken(self) -> SpokenCall:
        return SpokenCall(self.name, self.arguments)

    def read_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = orjson.loads(self.arguments)
        return arguments


Fragment = Said | Thought | Called


class MarkupReader:
    """``push`` text as it comes, ``finish`` once. Without ``reads_calls`` the tags of calls are plain text."""

    def __init__(self, *, reads_calls: bool) -> None:
        self._reads_calls = reads_calls
        self._held = ""
        self._space = ""
        self._state = self._before
        self.num_calls = 0

    def push(self, text: str) -> list[Fragment]:
        self._held += text
        fragments: list[Fragment] = []
        while self._state(fragments):
            pass
        return fragments

    def finish(self) -> list[Fragment]:
        """What was held back."""
        fragments: list[Fragment] = []
        held, self._held = self._held, ""
        if self._state == self._thinking:
            _add_thought(fragments, held)
        elif self._state == self._calling:
            self._take_calls(fragments, held, "")
        else:
            self._say(fragments, held)
        if self._space and not self.num_calls:
            fragments.append(Said(self._space))
        self._space = ""
        return fragments

    def _before(self, fragments: list[Fragment]) -> bool:
        """Nothing was said yet: reasoning may come first."""
        text = self._held.lstrip()
        if text.startswith(THINK_OPEN):
            self._held, self._state = text[len(THINK_OPEN) :], self._thinking
            return True
        if THINK_OPEN.startswith(text):
            return False
        self._state = self._saying
        return True

    def _thinking(self, fragments: list[Fragment]) -> bool:
        thought, tag, rest = self._held.partition(THINK_CLOSE)
        if tag:
            _add_thought(fragments, thought)
            self._held, self._state = rest, self._after_thought
            return True
        keep = _start_of(THINK_CLOSE, self._held)
        _add_thought(fragments, self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _after_thought(self, fragments: list[Fragment]) -> bool:
        """The blank lines between reasoning and answer are neither."""
        self._held = self._held.lstrip("\n")
        if not self._held:
            return False
        self._state = self._saying
        return True

    def _saying(self, fragments: list[Fragment]) -> bool:
        if not self._reads_calls:
            self._say(fragments, self._held)
            self._held = ""
            return False
        text, tag, rest = self._held.partition(OPEN_TAG)
        if tag:
            self._say(fragments, text)
            self._held, self._state = rest, self._calling
            return True
        keep = _start_of(OPEN_TAG, self._held)
        self._say(fragments, self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _calling(self, fragments: list[Fragment]) -> bool:
        body, tag, rest = self._held.partition(CLOSE_TAG)
        if not tag:
            return False
        self._take_calls(fragments, body, CLOSE_TAG)
        self._held, self._state = rest, self._saying
        return True

    def _take_calls(self, fragments: list[Fragment], body: str, tag: str) -> None:
        """A call that opens before the last one was closed ends it."""
        *unclosed, last = body.split(OPEN_TAG)
        for part in unclosed:
            self._take_call(fragments, part, "")
        self._take_call(fragments, last, tag)

    def _take_call(self, fragments: list[Fragment], body: str, tag: str) -> None:
        [call] = parse_tool_calls(OPEN_TAG + body)
        if call.error is not None:
            self._say(fragments, f"{OPEN_TAG}{body}{tag}")
            return
        self._space = ""
        arguments = orjson.dumps(dict(call.arguments)).decode()
        fragments.append(Called(self.num_calls, f"call_{secrets.token_hex(12)}", call.name, arguments))
        self.num_calls += 1

    def _say(self, fragments: list[Fragment], text: str) -> None:
        """White space waits for what follows: around calls it is no part of the answer."""
        if not self._reads_calls:
            if text:
                fragments.append(Said(text))
            return
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :]
        if visible:
            fragments.append(Said(visible))


def _add_thought(fragments: list[Fragment], text: str) -> None:
    if text:
        fragments.append(Thought(text))


def _start_of(tag: str, text: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
