"""Conversation → token ids, span by span, from the model's own chat template.

Invariants
- Untrusted text (system, user, tool results) never passes through the template: unguessable placeholders do, the
  rendered text is split at them, and the text itself is encoded with control tokens inert.
- Ids that the engine sampled are never made again from text: what follows an assistant turn is derived from the
  template alone and continues the stored ids.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from envs.types import ToolSpec
from online_agent.errors import ConfigError
from online_agent.rendering.chat_template import ChatTemplate, Message, read_chat_template
from online_agent.rendering.text_encoder import TextEncoder
from online_agent.rendering.tool_schemas import tool_schemas, tool_section
from online_agent.types import Int32Array, SpanKind

CACHE_SIZE = 256
"""Distinct tool lists, system texts and result counts kept; an episode meets one or two of each."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one kind. token_ids (T,) int32."""

    kind: SpanKind
    token_ids: Int32Array


Plan = tuple[Int32Array | str, ...]
"""A rendered conversation: ids of the template's own text, and the name of each untrusted text between them."""


class ChatRenderer:
    """One model's way of writing a conversation as ids.

    ``stop_token_ids`` end an assistant turn, ``template_hash`` names the template, every id is below ``vocab_size``.
    """

    def __init__(
        self, template: ChatTemplate, encoder: TextEncoder, vocab_size: int, stop_token_ids: Sequence[int] = ()
    ) -> None:
        self._template = template
        self._encoder = encoder
        self.vocab_size = vocab_size
        self.template_hash = hashlib.sha256(template.source.encode()).hexdigest()[:16]
        self._has_system_role = self._shows([_message("system", "PROBE"), _message("user", "")], "PROBE")
        self._has_tool_section = self._shows([_message("user", "")], "PROBE", [ToolSpec("PROBE", "", {})])
        self._has_tool_role = self._shows(
            [_message("user", ""), _message("assistant", ""), _message("tool", "PROBE")], "PROBE"
        )
        self._encode_system = lru_cache(CACHE_SIZE)(encoder.encode_plain)
        self._observation_plan = lru_cache(CACHE_SIZE)(self._make_observation_plan)
        self._prompt_plans: dict[bytes, Plan] = {}
        end_of_turn = set(_first_ids(self._observation_plan(1))) & encoder.control_ids
        self.stop_token_ids = tuple(sorted(end_of_turn.union(stop_token_ids)))
        if not self.stop_token_ids:
            raise ConfigError("the model names no end-of-sequence token and its chat template ends turns without one")

    @classmethod
    def load(cls, model_dir: Path) -> ChatRenderer:
        """From a Hugging Face directory. Raises ConfigError naming the file that is missing or unusable."""
        config = _read_json(model_dir / "config.json", is_required=True)
        tokenizer_config = _read_json(model_dir / "tokenizer_config.json")
        generation_config = _read_json(model_dir / "generation_config.json")
        vocab_size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        if not isinstance(vocab_size, int):
            raise ConfigError(f"{model_dir / 'config.json'} has no vocab_size")
        encoder = TextEncoder(model_dir / "tokenizer.json")
        template = read_chat_template(model_dir, tokenizer_config)
        stops = {*_as_ids(config.get("eos_token_id")), *_as_ids(generation_config.get("eos_token_id"))}
        eos_token = tokenizer_config.get("eos_token")
        eos_text = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
        eos_id = encoder.token_id(eos_text) if isinstance(eos_text, str) else None
        return cls(template, encoder, vocab_size, sorted(stops | ({eos_id} if eos_id is not None else set())))

    def render_prompt(self, system: str, user: str, tools: Sequence[ToolSpec]) -> list[Piece]:
        """Everything before the first assistant turn. Untrusted text is PROMPT, the template's own text TEMPLATE.

        A template without a tool section gets the tools in the system text; one without a system role gets the
        system text at the head of the user's.
        """
        if tools and not self._has_tool_section:
            system = f"{system}\n\n{tool_section(tools)}" if system else tool_section(tools)
        if system and not self._has_system_role:
            user, system = f"{system}\n\n{user}", ""
        key = orjson.dumps([bool(system), tool_schemas(tools)])
        plan = self._prompt_plans.get(key)
        if plan is None:
            if len(self._prompt_plans) >= CACHE_SIZE:
                self._prompt_plans.clear()
            plan = self._prompt_plans[key] = self._make_prompt_plan(bool(system), tools)
        encoders: dict[str, Callable[[], Int32Array]] = {
            "system": partial(self._encode_system, system),
            "user": partial(self._encoder.encode_plain, user),
        }
        return _fill(plan, encoders, SpanKind.PROMPT, self._encoder)

    def render_observations(self, texts: Sequence[str], last_token_id: int | None) -> list[Piece]:
        """Tool results and the next generation prompt, to follow the ids of an assistant turn exactly.

        ``last_token_id`` is the turn's last sampled id: unless it is a stop id, the end of turn is added as TEMPLATE.
        """
        plan = self._observation_plan(len(texts))
        if last_token_id in self.stop_token_ids:
            plan = _without_end_of_turn(plan, self.stop_token_ids)
        encoders = {f"result {i}": partial(self._encoder.encode_plain, text) for i, text in enumerate(texts)}
        return _fill(plan, encoders, SpanKind.OBSERVATION, self._encoder)

    def encode_text(self, text: str) -> Int32Array:
        """Untrusted text: control tokens inside it become plain text."""
        return self._encoder.encode_plain(text)

    def encode_template_text(self, text: str) -> Int32Array:
        """Text of our own making: control tokens inside it are control tokens."""
        return self._encoder.encode_template(text)

    def decode(self, token_ids: Sequence[int] | Int32Array) -> str:
        """The text of the ids, control tokens included."""
        return self._encoder.decode(token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids)

    def _make_prompt_plan(self, has_system: bool, tools: Sequence[ToolSpec]) -> Plan:
        slots = _Slots()
        messages = [_message("user", slots.new("user"))]
        if has_system:
            messages.insert(0, _message("system", slots.new("system")))
        schemas = slots.hide_control_texts(tool_schemas(tools), self._encoder) if self._has_tool_section else []
        return self._plan(self._template.render(messages, schemas, True), slots)

    def _make_observation_plan(self, num_results: int) -> Plan:
        slots = _Slots()
        answer = slots.new("answer")
        results = [slots.new(f"result {index}") for index in range(num_results)]
        role, wrap = ("tool", "{}") if self._has_tool_role else ("user", "<tool_response>\n{}\n</tool_response>")
        messages = [_message("user", ""), _message("assistant", answer)]
        messages += [_message(role, wrap.format(result)) for result in results]
        text = self._template.render(messages, None, True)
        if answer not in text or any(result not in text for result in results):
            raise ConfigError("the chat template leaves out assistant turns or tool results")
        return self._plan(text.split(answer, 1)[1], slots)

    def _plan(self, text: str, slots: _Slots) -> Plan:
        parts: list[Int32Array | str] = []
        for index, part in enumerate(slots.split(text)):
            if index % 2:
                parts.append(slots.names[part])
            elif part or not parts:
                parts.append(self._encoder.encode_template(part))
        return tuple(parts)

    def _shows(self, messages: Sequence[Message], probe: str, tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            return probe in self._template.render(messages, tool_schemas(tools), True)
        except ConfigError:
            return False


class _Slots:
    """Placeholders that no text can contain by accident or by guess, and the name each stands for."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def new(self, name: str) -> str:
        placeholder = f"slot{secrets.token_hex(16)}end"
        self.names[placeholder] = name
        return placeholder

    def split(self, text: str) -> list[str]:
        """Template text at even positions, placeholders at odd ones."""
        return re.split(f"({'|'.join(self.names)})", text)

    def hide_control_texts(self, value: Any, encoder: TextEncoder) -> Any:
        """The value with every string that holds a control token's text replaced by a placeholder for that text."""
        if isinstance(value, str):
            return self.new(f"text {value}") if encoder.has_control_text(value) else value
        if isinstance(value, Mapping):
            return {self.hide_control_texts(k, encoder): self.hide_control_texts(v, encoder) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_control_texts(item, encoder) for item in value]
        return value


def _fill(
    plan: Plan, encoders: Mapping[str, Callable[[], Int32Array]], kind: SpanKind, encoder: TextEncoder
) -> list[Piece]:
    pieces: list[Piece] = []
    for part in plan:
        if not isinstance(part, str):
            piece = Piece(SpanKind.TEMPLATE, part)
        elif part in encoders:
            piece = Piece(kind, encoders[part]())
        else:
            piece = Piece(kind, encoder.encode_plain(part.removeprefix("text ")))
        if len(piece.token_ids):
            pieces.append(piece)
    return pieces


def _first_ids(plan: Plan) -> list[int]:
    head = plan[0]
    return head[:1].tolist() if isinstance(head, np.ndarray) else []


def _without_end_of_turn(plan: Plan, stop_token_ids: Sequence[int]) -> Plan:
    head = plan[0]
    if isinstance(head, np.ndarray) and len(head) and int(head[0]) in stop_token_ids:
        return (head[1:], *plan[1:])
    return plan


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]


def _read_json(path: Path, is_required: bool = False) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if is_required:
            raise ConfigError(f"{path} is missing") from None
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return content
