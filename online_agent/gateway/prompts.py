"""A client's history → the ids the engine gets: what is stored is continued, what is new is rendered.

Invariants
- The client's text decides where the conversation continues, and is tokenised only for what is new in it.
- An answer of this service keeps its sampled ids wherever the client's history still holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from online_agent.errors import NotFound
from online_agent.gateway.calls import ChatCall, ToolChoice
from online_agent.gateway.fingerprints import chain, conversation_root, message_fingerprint
from online_agent.gateway.markup import THINK_OPEN
from online_agent.rendering import ChatRenderer, Piece
from online_agent.rendering.call_families import FAMILIES, HERMES
from online_agent.rendering.conversation import ConversationRenderer
from online_agent.rendering.tool_calls import OPEN_TAG
from online_agent.store.records import CompletionLink
from online_agent.store.segments import TurnTree
from online_agent.types import Int32Array, Span, SpanKind

ReadSpans = Callable[[Collection[int]], Mapping[int, list[Span]]]
"""The stored spans of each of the turns."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``spans`` are new and follow ``context``, the stored ids up to and with turn ``parent``.

    ``forced_text`` is the beginning of the answer, ``num_forced`` ids at the end of ``spans``. ``opens_thought``: the
    template itself begins every answer with the tag of reasoning. ``num_routed``: how many ids, from the first on,
    have their experts stored.
    """

    spans: list[Span]
    context: list[Span]
    parent: int | None
    parent_completion: str | None
    prompt_hash: str
    forced_text: str
    num_forced: int
    opens_thought: bool
    num_routed: int = 0

    @property
    def input_ids(self) -> Int32Array:
        return np.concatenate([span.token_ids for span in (*self.context, *self.spans)])

    @property
    def num_input_ids(self) -> int:
        return sum(len(span.token_ids) for span in (*self.context, *self.spans))


class PromptBuilder:
    def __init__(self, renderer: ChatRenderer, family: str = HERMES) -> None:
        self._renderer, self._family = renderer, family
        self._conversation = ConversationRenderer(renderer)

    def build(self, call: ChatCall, links: Sequence[CompletionLink], read_spans: ReadSpans) -> Prompt:
        """Raises BadInput naming the message that the model's template cannot write."""
        parent, num_matched = self._previous(call, links), 0
        root = conversation_root(self._renderer.template_hash, call.tools) if parent is None else parent.history_hash
        hashes = chain(root, call.messages)
        if parent is None:
            parent, num_matched = self._parent(call, links, hashes)
        known = self._known(call, num_matched, links, read_spans)
        context: list[Span] = []
        if parent is None:
            pieces = self._conversation.render_start(call.messages, call.tools, known)
        else:
            path = TurnTree(links).path(parent.turn)
            stored = read_spans(path)
            context = [span for turn in path for span in stored[turn]]
            last = next((int(s.token_ids[-1]) for s in reversed(context) if len(s.token_ids)), None)
            pieces = self._conversation.render_continuation(call.messages[num_matched:], last, known)
        opens_thought = bool(pieces) and self._renderer.decode(pieces[-1].token_ids).rstrip().endswith(THINK_OPEN)
        forced_text = forced_beginning(call.tool_choice, self._family)
        forced = self._renderer.encode_template_text(forced_text)
        if len(forced):
            pieces = [*pieces, Piece(SpanKind.TEMPLATE, forced)]
        return Prompt(
            spans=[Span(piece.kind, 0, piece.token_ids) for piece in pieces],
            context=context,
            parent=None if parent is None else parent.turn,
            parent_completion=None if parent is None else parent.completion_id,
            prompt_hash=hashes[-1],
            forced_text=forced_text,
            num_forced=len(forced),
            opens_thought=opens_thought,
        )

    @staticmethod
    def _previous(call: ChatCall, links: Sequence[CompletionLink]) -> CompletionLink | None:
        """The answer that the call names as the one it follows. Raises NotFound when it is not in the episode."""
        if call.previous is None:
            return None
        for link in links:
            if link.completion_id == call.previous:
                return link
        raise NotFound(f"no answer {call.previous!r} to go on from", param="previous_response_id")

    @staticmethod
    def _parent(
        call: ChatCall, links: Sequence[CompletionLink], hashes: Sequence[str]
    ) -> tuple[CompletionLink | None, int]:
        """The latest turn that the history holds whole, and how many messages that is."""
        told = {link.history_hash: link for link in links}
        for count in range(len(call.messages), 0, -1):
            if call.messages[count - 1].role == "assistant" and hashes[count] in told:
                return told[hashes[count]], count
        return None, 0

    @staticmethod
    def _known(
        call: ChatCall, num_matched: int, links: Sequence[CompletionLink], read_spans: ReadSpans
    ) -> dict[int, Int32Array]:
        """The sampled ids of the assistant messages after the match, as positions among those."""
        said = {link.message_hash: link for link in links}
        found = {
            index - num_matched: said[fingerprint]
            for index, message in enumerate(call.messages)
            if index >= num_matched
            and message.role == "assistant"
            and (fingerprint := message_fingerprint(message)) in said
        }
        spans = read_spans({link.turn for link in found.values()}) if found else {}
        return {index: answer_ids(spans[link.turn], link.num_forced) for index, link in found.items()}


def answer_ids(spans: Sequence[Span], num_forced: int) -> Int32Array:
    """The ids of an assistant turn: what the tool choice forced, then what was sampled."""
    at = next(i for i, span in enumerate(spans) if span.kind is SpanKind.ACTION)
    sampled = spans[at].token_ids
    return np.concatenate([spans[at - 1].token_ids[-num_forced:], sampled]) if num_forced else sampled


def forced_beginning(choice: ToolChoice, family: str = HERMES) -> str:
    """How an answer begins that has to be a call. Nothing needs a grammar: the model goes on from there."""
    if choice.mode != "required":
        return ""
    if family in FAMILIES:
        return FAMILIES[family].forced_beginning(choice.name)
    if choice.name is None:
        return f'{OPEN_TAG}\n{{"name": "'
    return f'{OPEN_TAG}\n{{"name": {orjson.dumps(choice.name).decode()}, "arguments": '
