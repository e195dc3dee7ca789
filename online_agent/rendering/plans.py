"""A rendered conversation as a plan: ids of the template's own text, and names of the untrusted texts between them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from online_agent.rendering.chat_template import Message
from online_agent.rendering.text_encoder import TextEncoder
from online_agent.types import Int32Array, SpanKind

Plan = tuple[Int32Array | str, ...]
"""Ids of the template's own text, and the name of each untrusted text between them."""

_HIDDEN = "text "
"""Slots of this prefix stand for the text that follows it: strings of tool schemas that hold a control token's text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one kind. token_ids (T,) int32."""

    kind: SpanKind
    token_ids: Int32Array


class Slots:
    """Placeholders that no text can contain by accident or by guess, and the name each stands for."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def new(self, name: str) -> str:
        placeholder = f"slot{secrets.token_hex(16)}end"
        self.names[placeholder] = name
        return placeholder

    def missing_in(self, text: str) -> list[str]:
        """The names whose placeholders the template left out of ``text``."""
        return [name for placeholder, name in self.names.items() if placeholder not in text]

    def split(self, text: str) -> list[str]:
        """Template text at even positions, placeholders at odd ones."""
        return re.split(f"({'|'.join(self.names)})", text) if self.names else [text]

    def plan(self, text: str, encoder: TextEncoder) -> Plan:
        """The text with its placeholders as names and the rest as ids; ids come first, if only none."""
        parts: list[Int32Array | str] = []
        for index, part in enumerate(self.split(text)):
            if index % 2:
                parts.append(self.names[part])
            elif part or not parts:
                parts.append(encoder.encode_template(part))
        return tuple(parts)

    def hide_control_texts(self, value: Any, encoder: TextEncoder) -> Any:
        """The value with every string that holds a control token's text replaced by a placeholder for that text."""
        if isinstance(value, str):
            return self.new(f"{_HIDDEN}{value}") if encoder.has_control_text(value) else value
        if isinstance(value, Mapping):
            return {self.hide_control_texts(k, encoder): self.hide_control_texts(v, encoder) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_control_texts(item, encoder) for item in value]
        return value


def hidden_text(name: str) -> str:
    return name.removeprefix(_HIDDEN)


def fill(
    plan: Plan, encoders: Mapping[str, Callable[[], Int32Array]], kind: SpanKind, encoder: TextEncoder
) -> list[Piece]:
    """The pieces of a plan: its own text TEMPLATE, everything named of ``kind``; empty ones are left out."""
    pieces: list[Piece] = []
    for part in plan:
        if not isinstance(part, str):
            piece = Piece(SpanKind.TEMPLATE, part)
        elif part in encoders:
            piece = Piece(kind, encoders[part]())
        else:
            piece = Piece(kind, encoder.encode_plain(hidden_text(part)))
        if len(piece.token_ids):
            pieces.append(piece)
    return pieces


def first_ids(plan: Plan) -> list[int]:
    head = plan[0]
    return head[:1].tolist() if isinstance(head, np.ndarray) else []


def without_end_of_turn(plan: Plan, stop_token_ids: Sequence[int]) -> Plan:
    """The plan without the end of turn it begins with, for ids that already hold it."""
    head = plan[0]
    if isinstance(head, np.ndarray) and len(head) and int(head[0]) in stop_token_ids:
        return (head[1:], *plan[1:])
    return plan


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
