"""Sampled ids → what the client gets, and where its own stop rules end the answer.

Invariant: the ids alone decide. An answer that is read in one piece equals one that was streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from online_agent.gateway.markup import Called, Fragment, MarkupReader, Said, Thought
from online_agent.rendering import ChatRenderer
from online_agent.rendering.call_families import HERMES
from online_agent.rendering.messages import ChatMessage
from online_agent.types import ToolCall


@dataclass(slots=True)
class AnswerText:
    """What was said so far. ``stop_string`` is the one that ended it, ``unread`` what looks like calls and is none."""

    text: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list)
    stop_string: str | None = None
    unread: list[ToolCall] = field(default_factory=list)

    @property
    def message(self) -> ChatMessage:
        """As it stands in a history: clients drop the reasoning."""
        return ChatMessage("assistant", self.text, tuple(call.spoken for call in self.calls))

    def add(self, fragment: Fragment) -> None:
        if isinstance(fragment, Said):
            self.text += fragment.text
        elif isinstance(fragment, Thought):
            self.reasoning += fragment.text
        else:
            self.calls.append(fragment)


class AnswerReader:
    """``push`` ids as they are sampled, ``end`` once there are no more (``finish`` does it too), and ``finish`` once.

    ``forced_text`` is the beginning of the answer that the client's tool choice asked for: read, not sampled.
    ``is_over`` once a stop string stands in the text or the only call allowed is complete; ``num_tokens`` are the ids
    up to there.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        *,
        stop: Sequence[str] = (),
        reads_calls: bool = False,
        family: str = HERMES,
        max_calls: int | None = None,
        forced_text: str = "",
    ) -> None:
        self._stops = frozenset(renderer.stop_token_ids)
        self._decoded = renderer.encoder.text_stream()
        self._markup = MarkupReader(reads_calls=reads_calls, family=family)
        self._stop, self._max_calls = tuple(stop), max_calls
        self._held = ""
        self.answer = AnswerText()
        self.num_tokens = 0
        self.is_over = self._has_ended = False
        self._take(self._markup.push(forced_text))

    def push(self, token_ids: Sequence[int], *, is_whole: bool = False) -> list[Fragment]:
        """What the ids add to the answer; those after its end are not looked at. ``is_whole``: there are no others."""
        if not self._stop and self._max_calls is None:
            return self._push_all(token_ids, is_whole)
        fragments: list[Fragment] = []
        for token_id in token_ids:
            if self.is_over:
                break
            self.num_tokens += 1
            if token_id not in self._stops:
                fragments += self._read(self._decoded.push(token_id))
        return fragments

    def _push_all(self, token_ids: Sequence[int], is_whole: bool) -> list[Fragment]:
        """As ``push`` where no rule can end the answer: read once, which is a sixth of the work of id by id."""
        self.num_tokens += len(token_ids)
        said = [token_id for token_id in token_ids if token_id not in self._stops]
        return self._read(self._decoded.push_all(said) if is_whole else "".join(map(self._decoded.push, said)))

    def end(self) -> list[Fragment]:
        """Nothing more is sampled: what was held back of the text. ``pending`` is then for the parser of its family."""
        self._has_ended = True
        fragments = [] if self.is_over else self._read(self._decoded.finish())
        return fragments if self.is_over else fragments + self._take(self._markup.push(self._held))

    @property
    def pending(self) -> str:
        return self._markup.pending

    def finish(self, read: Sequence[ToolCall] = ()) -> list[Fragment]:
        """The rest of the answer. ``read`` is what the parser made of ``pending``, of which ``max_calls`` are taken."""
        fragments = [] if self._has_ended else self.end()
        fragments += self._take(self._markup.finish(read, self._max_calls))
        self.answer.unread = self._markup.unread
        return fragments

    def _read(self, text: str) -> list[Fragment]:
        if not text:
            return []
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self.answer.stop_string, self.is_over = stop, True
            return self._take(self._markup.push(self._held[:at]))
        keep = max((_overlap(stop, self._held) for stop in self._stop), default=0)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        fragments = self._take(self._markup.push(ready))
        if self._max_calls is not None and self._markup.num_calls >= self._max_calls:
            self.is_over = True
        return fragments

    def _take(self, fragments: list[Fragment]) -> list[Fragment]:
        for fragment in fragments:
            self.answer.add(fragment)
        return fragments


def _overlap(stop: str, text: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
