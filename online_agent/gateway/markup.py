"""The text of an answer, read while it is sampled: reasoning, text and tool calls come apart.

Invariants
- The same text gives the same answer, however it is cut into pieces.
- Only a call that can be read becomes one. What looks like a call and cannot be read (cut off, not JSON) stays text,
  so nobody runs it.
- Hermes calls are read here as they come. Those of other families wait for the end of the answer and for the engine's
  parser (``pending``), and ``finish`` takes what it read.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from online_agent.rendering.call_families import FAMILIES, HERMES, CallFamily, foreign_family
from online_agent.rendering.messages import SpokenCall
from online_agent.rendering.tool_calls import CLOSE_TAG, OPEN_TAG, parse_tool_calls
from online_agent.types import ToolCall

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
_State = Callable[["MarkupReader", list[Fragment]], bool]
"""Takes what it can of the text that is held; whether another state goes on from there."""


class MarkupReader:
    """``push`` text as it comes, ``finish`` once. Without ``reads_calls`` the tags of calls are plain text.

    ``unread`` are the calls that were begun and could not be read, as they stand in the text.
    """

    def __init__(self, *, reads_calls: bool, family: str = HERMES) -> None:
        self._reads_calls, self._family_name = reads_calls, family
        self._family: CallFamily | None = FAMILIES.get(family)
        self._held = ""
        self._space = ""
        self._said = ""
        self._state: _State = MarkupReader._before  # no bound method, which would keep the reader alive
        self.num_calls = 0
        self.unread: list[ToolCall] = []

    def push(self, text: str) -> list[Fragment]:
        self._held += text
        fragments: list[Fragment] = []
        while self._state(self, fragments):
            pass
        return fragments

    @property
    def pending(self) -> str:
        """The whole calls of an answer that is over, for the parser of their family; empty when there are none."""
        if self._family is None or self._state != MarkupReader._waiting:
            return ""
        return self._held[: self._family.whole(self._held)]

    def finish(self, read: Sequence[ToolCall] = (), max_calls: int | None = None) -> list[Fragment]:
        """What was held back. ``read`` is what the parser made of ``pending``, of which ``max_calls`` are taken."""
        fragments: list[Fragment] = []
        held, self._held = self._held, ""
        if self._state == MarkupReader._thinking:
            _add_thought(fragments, held)
        elif self._state == MarkupReader._calling:
            self._take_calls(fragments, held, "")
        elif self._state == MarkupReader._waiting:
            self._take_read(fragments, held, read, max_calls)
        else:
            self._say(fragments, held)
        if self._space and not self.num_calls:
            fragments.append(Said(self._space))
        self._space = ""
        self._look_for_other_families()
        return fragments

    def _before(self, fragments: list[Fragment]) -> bool:
        """Nothing was said yet: reasoning may come first."""
        text = self._held.lstrip()
        if text.startswith(THINK_OPEN):
            self._held, self._state = text[len(THINK_OPEN) :], MarkupReader._thinking
            return True
        if THINK_OPEN.startswith(text):
            return False
        self._state = MarkupReader._saying
        return True

    def _thinking(self, fragments: list[Fragment]) -> bool:
        thought, tag, rest = self._held.partition(THINK_CLOSE)
        if tag:
            _add_thought(fragments, thought)
            self._held, self._state = rest, MarkupReader._after_thought
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
        self._state = MarkupReader._saying
        return True

    def _saying(self, fragments: list[Fragment]) -> bool:
        if not self._reads_calls:
            self._say(fragments, self._held)
            self._held = ""
            return False
        if self._family is not None:
            return self._saying_before(self._family, fragments)
        text, tag, rest = self._held.partition(OPEN_TAG)
        if tag:
            self._say(fragments, text)
            self._held, self._state = rest, MarkupReader._calling
            return True
        self._say_all_but(fragments, _start_of(OPEN_TAG, self._held))
        return False

    def _saying_before(self, family: CallFamily, fragments: list[Fragment]) -> bool:
        """Calls of another family run to the end of the answer."""
        at = family.find(self._held, is_first=not self._said)
        if at >= 0:
            self._say(fragments, self._held[:at])
            self._held, self._state = self._held[at:], MarkupReader._waiting
            return True
        self._say_all_but(fragments, max(_start_of(opener, self._held) for opener in family.openers))
        return False

    def _say_all_but(self, fragments: list[Fragment], num_kept: int) -> None:
        """The last characters may begin a call: they wait."""
        end = len(self._held) - num_kept
        self._say(fragments, self._held[:end])
        self._held = self._held[end:]

    def _waiting(self, fragments: list[Fragment]) -> bool:
        return False

    def _calling(self, fragments: list[Fragment]) -> bool:
        body, tag, rest = self._held.partition(CLOSE_TAG)
        if not tag:
            return False
        self._take_calls(fragments, body, CLOSE_TAG)
        self._held, self._state = rest, MarkupReader._saying
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
            self.unread.append(call)
            self._say(fragments, f"{OPEN_TAG}{body}{tag}")
            return
        self._add_call(fragments, call)

    def _take_read(self, fragments: list[Fragment], held: str, read: Sequence[ToolCall], max_calls: int | None) -> None:
        """A call that the parser could not read, or left out, stays in the text with all that stands beside it."""
        assert self._family is not None
        whole = [call for call in read if call.error is None]
        self.unread += [call for call in read if call.error is not None]
        if not self.unread and self._family.has_unread(held, len(whole)):
            self.unread.append(ToolCall(name="", error=f"the parser for {self._family_name} cannot read it"))
        for call in whole[:max_calls]:
            self._add_call(fragments, call)
        self._say(fragments, self._family.rest(held) if whole else held)

    def _add_call(self, fragments: list[Fragment], call: ToolCall) -> None:
        self._space = ""
        arguments = orjson.dumps(dict(call.arguments)).decode()
        fragments.append(Called(self.num_calls, f"call_{secrets.token_hex(12)}", call.name, arguments))
        self.num_calls += 1

    def _look_for_other_families(self) -> None:
        """A model that writes another form than it is read as makes no call at all: that has to be seen."""
        if not self._reads_calls or self.num_calls or self.unread:
            return
        other = foreign_family(self._said, self._family_name)
        if other is not None:
            self.unread.append(ToolCall(name="", error=f"it looks like a call of {other}, read as {self._family_name}"))

    def _say(self, fragments: list[Fragment], text: str) -> None:
        """White space waits for what follows: around calls it is no part of the answer."""
        if not self._reads_calls:
            if text:
                fragments.append(Said(text))
            return
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :]
        self._said += visible
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
