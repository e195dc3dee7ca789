"""Whole conversations and their continuations → token ids, for clients that send their history with every call.

Invariants
- No text of a client passes through the template: it is encoded with control tokens inert.
- An assistant turn whose sampled ids are known is written with those ids; only a turn that this service never sampled
  is made from its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson

from envs.types import ToolSpec
from online_agent.errors import BadInput, ConfigError
from online_agent.rendering.chat_template import Message
from online_agent.rendering.messages import ChatMessage, Role
from online_agent.rendering.plans import Piece, Plan, Slots, hidden_text, message, without_end_of_turn
from online_agent.rendering.renderer import CACHE_SIZE, ChatRenderer
from online_agent.rendering.tool_calls import CLOSE_TAG, OPEN_TAG
from online_agent.rendering.tool_schemas import tool_schemas, tool_section
from online_agent.types import Int32Array, SpanKind

Known = Mapping[int, Int32Array]
"""Position of an assistant message → the ids it was sampled as."""

_TOOLS = "tools"
_ANSWER = "answer"
_KINDS: dict[Role, SpanKind] = {"tool": SpanKind.OBSERVATION}


@dataclass(frozen=True, slots=True)
class _Line:
    """One message for the template: ``content`` formats the slots ``names`` into it."""

    role: Role
    content: str
    names: tuple[str, ...]


Script = tuple[_Line, ...]


class ConversationRenderer:
    """Raises BadInput naming the message that the model's template cannot write."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._encoder = renderer.encoder
        self._continuation_plan = lru_cache(CACHE_SIZE)(self._make_continuation_plan)
        self._start_plan = lru_cache(CACHE_SIZE)(self._make_start_plan)

    def render_start(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], known: Known) -> list[Piece]:
        """The whole history and the next generation prompt. Clients' text and earlier answers are PROMPT."""
        in_system_text = bool(tools) and not self._renderer.has_tool_section
        schemas = b"" if in_system_text else orjson.dumps(tool_schemas(tools))
        num_leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
        plan = self._start_plan(self._script(messages, num_leading, has_tool_text=in_system_text), schemas)
        texts = {_TOOLS: self._encoder.encode_plain(tool_section(tools))} if in_system_text else {}
        return self._fill(plan, messages, known, texts)

    def render_continuation(
        self, messages: Sequence[ChatMessage], last_token_id: int | None, known: Known
    ) -> list[Piece]:
        """What follows an assistant turn whose ids are stored: ``messages`` and the next generation prompt.

        ``last_token_id`` is the last of those ids: unless it is a stop id, the end of turn is added as TEMPLATE.
        """
        plan = self._continuation_plan(self._script(messages, num_leading=0))
        if last_token_id in self._renderer.stop_token_ids:
            plan = without_end_of_turn(plan, self._renderer.stop_token_ids)
        return self._fill(plan, messages, known, {})

    def _script(self, messages: Sequence[ChatMessage], num_leading: int, has_tool_text: bool = False) -> Script:
        """The messages as this template can write them.

        The leading system messages become one; later ones, which templates drop or refuse, speak as the user. Without
        a system role the system text stands at the head of the first message, without a tool role results are the
        user's.
        """
        head = [_TOOLS] if has_tool_text else []
        head = [*(_slot(i) for i in range(num_leading)), *head]
        lines = [self._line(i, m) for i, m in enumerate(messages) if i >= num_leading]
        if head and self._renderer.has_system_role:
            lines.insert(0, _Line("system", "\n\n".join("{}" for _ in head), tuple(head)))
        elif head and lines and lines[0].role == "user":
            content = "\n\n".join(["{}" for _ in head] + [lines[0].content])
            lines[0] = _Line("user", content, (*head, *lines[0].names))
        elif head:
            lines.insert(0, _Line("user", "\n\n".join("{}" for _ in head), tuple(head)))
        return tuple(lines)

    def _line(self, index: int, message: ChatMessage) -> _Line:
        name = _slot(index)
        if message.role == "tool" and not self._renderer.has_tool_role:
            return _Line("user", "<tool_response>\n{}\n</tool_response>", (name,))
        return _Line("user" if message.role == "system" else message.role, "{}", (name,))

    def _make_start_plan(self, script: Script, schemas: bytes) -> Plan:
        slots = Slots()
        tools = orjson.loads(schemas) if schemas else []
        return self._planned(slots, [], script, slots.hide_control_texts(tools, self._encoder))

    def _make_continuation_plan(self, script: Script) -> Plan:
        slots = Slots()
        before = [message("user", ""), message("assistant", slots.new(_ANSWER))]
        plan = self._planned(slots, before, script, [])
        after = next(i for i, part in enumerate(plan) if isinstance(part, str) and part == _ANSWER)
        return plan[after + 1 :]

    def _planned(self, slots: Slots, before: list[Message], script: Script, tools: list[Message]) -> Plan:
        lines = [message(line.role, line.content.format(*map(slots.new, line.names))) for line in script]
        try:
            text = self._renderer.template.render([*before, *lines], tools, True)
        except ConfigError as error:
            raise BadInput(error.message, param="messages") from error
        missing = slots.missing_in(text)
        if missing:
            raise BadInput(f"the model's chat template leaves out {missing[0]}", param=missing[0])
        return slots.plan(text, self._encoder)

    def _fill(
        self, plan: Plan, messages: Sequence[ChatMessage], known: Known, texts: Mapping[str, Int32Array]
    ) -> list[Piece]:
        named = {_slot(i): i for i in range(len(messages))}
        pieces: list[Piece] = []
        is_ended = False
        for part in plan:
            if isinstance(part, str) and part in named:
                index = named[part]
                ids = self._ids(messages[index], known.get(index))
                is_ended = index in known and len(ids) > 0 and int(ids[-1]) in self._renderer.stop_token_ids
                piece = Piece(_KINDS.get(messages[index].role, SpanKind.PROMPT), ids)
            elif isinstance(part, str):
                ids = texts[part] if part in texts else self._encoder.encode_plain(hidden_text(part))
                piece = Piece(SpanKind.PROMPT, ids)
            else:
                [own] = without_end_of_turn((part,), self._renderer.stop_token_ids) if is_ended else (part,)
                assert not isinstance(own, str)
                piece, is_ended = Piece(SpanKind.TEMPLATE, own), False
            if len(piece.token_ids):
                pieces.append(piece)
        return pieces

    def _ids(self, message: ChatMessage, known: Int32Array | None) -> Int32Array:
        if known is not None:
            return known
        parts = [self._encoder.encode_plain(message.text)]
        for call in message.calls:
            lead = "\n" if message.text or len(parts) > 1 else ""
            parts.append(self._encoder.encode_template(f"{lead}{OPEN_TAG}\n"))
            parts.append(self._encoder.encode_plain(_call_json(call.name, call.arguments)))
            parts.append(self._encoder.encode_template(f"\n{CLOSE_TAG}"))
        return np.concatenate(parts)


def _call_json(name: str, arguments: str) -> str:
    """The call as a model writes it. What is not JSON stands as the client sent it."""
    try:
        inner = orjson.dumps(orjson.loads(arguments)).decode()
    except orjson.JSONDecodeError:
        inner = arguments
    return f'{{"name": {orjson.dumps(name).decode()}, "arguments": {inner}}}'


def _slot(index: int) -> str:
    return f"messages[{index}]"
