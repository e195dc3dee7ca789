"""Conversation → token ids, span by span, from the model's own chat template.

Invariants
- Untrusted text (system, user, tool results) never passes through the template: unguessable placeholders do, the
  rendered text is split at them, and the text itself is encoded with control tokens inert.
- Ids that the engine sampled are never made again from text: what follows an assistant turn is derived from the
  template alone and continues the stored ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from envs.types import ToolSpec
from online_agent.errors import ConfigError
from online_agent.rendering.chat_template import ChatTemplate, Message, read_chat_template
from online_agent.rendering.plans import Piece, Plan, Slots, fill, first_ids, message, without_end_of_turn
from online_agent.rendering.text_encoder import TextEncoder
from online_agent.rendering.tool_schemas import tool_schemas, tool_section
from online_agent.types import Int32Array, SpanKind

CACHE_SIZE = 256
"""Distinct tool lists, system texts and result counts kept; an episode meets one or two of each."""


class ChatRenderer:
    """One model's way of writing a conversation as ids.

    ``stop_token_ids`` end an assistant turn, ``template_hash`` names the template, every id is below ``vocab_size``;
    ``has_system_role``, ``has_tool_role`` and ``has_tool_section`` say what the template can write.
    """

    def __init__(
        self, template: ChatTemplate, encoder: TextEncoder, vocab_size: int, stop_token_ids: Sequence[int] = ()
    ) -> None:
        self.template = template
        self.encoder = encoder
        self.vocab_size = vocab_size
        self.template_hash = hashlib.sha256(template.source.encode()).hexdigest()[:16]
        self.has_system_role = self._shows([message("system", "PROBE"), message("user", "")], "PROBE")
        self.has_tool_section = self._shows([message("user", "")], "PROBE", [ToolSpec("PROBE", "", {})])
        self.has_tool_role = self._shows(
            [message("user", ""), message("assistant", ""), message("tool", "PROBE")], "PROBE"
        )
        self._encode_system = lru_cache(CACHE_SIZE)(encoder.encode_plain)
        self._observation_plan = lru_cache(CACHE_SIZE)(self._make_observation_plan)
        self._prompt_plans: dict[bytes, Plan] = {}
        end_of_turn = set(first_ids(self._observation_plan(1))) & encoder.control_ids
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
        if tools and not self.has_tool_section:
            system = f"{system}\n\n{tool_section(tools)}" if system else tool_section(tools)
        if system and not self.has_system_role:
            user, system = f"{system}\n\n{user}", ""
        key = orjson.dumps([bool(system), tool_schemas(tools)])
        plan = self._prompt_plans.get(key)
        if plan is None:
            if len(self._prompt_plans) >= CACHE_SIZE:
                self._prompt_plans.clear()
            plan = self._prompt_plans[key] = self._make_prompt_plan(bool(system), tools)
        encoders: dict[str, Callable[[], Int32Array]] = {
            "system": partial(self._encode_system, system),
            "user": partial(self.encoder.encode_plain, user),
        }
        return fill(plan, encoders, SpanKind.PROMPT, self.encoder)

    def render_observations(self, texts: Sequence[str], last_token_id: int | None) -> list[Piece]:
        """Tool results and the next generation prompt, to follow the ids of an assistant turn exactly.

        ``last_token_id`` is the turn's last sampled id: unless it is a stop id, the end of turn is added as TEMPLATE.
        """
        plan = self._observation_plan(len(texts))
        if last_token_id in self.stop_token_ids:
            plan = without_end_of_turn(plan, self.stop_token_ids)
        encoders = {f"result {i}": partial(self.encoder.encode_plain, text) for i, text in enumerate(texts)}
        return fill(plan, encoders, SpanKind.OBSERVATION, self.encoder)

    def encode_text(self, text: str) -> Int32Array:
        """Untrusted text: control tokens inside it become plain text."""
        return self.encoder.encode_plain(text)

    def encode_template_text(self, text: str) -> Int32Array:
        """Text of our own making: control tokens inside it are control tokens."""
        return self.encoder.encode_template(text)

    def decode(self, token_ids: Sequence[int] | Int32Array) -> str:
        """The text of the ids, control tokens included."""
        return self.encoder.decode(token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids)

    def _make_prompt_plan(self, has_system: bool, tools: Sequence[ToolSpec]) -> Plan:
        slots = Slots()
        messages = [message("user", slots.new("user"))]
        if has_system:
            messages.insert(0, message("system", slots.new("system")))
        schemas = slots.hide_control_texts(tool_schemas(tools), self.encoder) if self.has_tool_section else []
        return slots.plan(self.template.render(messages, schemas, True), self.encoder)

    def _make_observation_plan(self, num_results: int) -> Plan:
        slots = Slots()
        answer = slots.new("answer")
        results = [slots.new(f"result {index}") for index in range(num_results)]
        role, wrap = ("tool", "{}") if self.has_tool_role else ("user", "<tool_response>\n{}\n</tool_response>")
        messages = [message("user", ""), message("assistant", answer)]
        messages += [message(role, wrap.format(result)) for result in results]
        text = self.template.render(messages, None, True)
        if answer not in text or any(result not in text for result in results):
            raise ConfigError("the chat template leaves out assistant turns or tool results")
        return slots.plan(text.split(answer, 1)[1], self.encoder)

    def _shows(self, messages: Sequence[Message], probe: str, tools: Sequence[ToolSpec] = ()) -> bool:
        try:
            return probe in self.template.render(messages, tool_schemas(tools), True)
        except ConfigError:
            return False


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
