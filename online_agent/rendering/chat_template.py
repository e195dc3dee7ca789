"""The model's own Jinja chat template, run in a sandbox, with the globals that Hugging Face templates rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from online_agent.errors import ConfigError

Message = Mapping[str, Any]


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}`` marks assistant text for other trainers; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it as an instance attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """``render`` raises ConfigError where the template refuses the messages."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not parse: {error}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, is_generation: bool
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=is_generation,
                # Answers are tool calls; templates that do not know the switch ignore it.
                enable_thinking=False,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # A template is a program of the model's author: it may fail in any way an expression can.
            raise ConfigError(f"the chat template refuses these messages: {error}") from error


def read_chat_template(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate:
    """The template of a Hugging Face directory: ``chat_template.jinja``, else the tokenizer config's entry."""
    template_file = model_dir / "chat_template.jinja"
    if template_file.is_file():
        source: Any = template_file.read_text()
    else:
        source = tokenizer_config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("tool_use", named.get("default"))
    if not isinstance(source, str):
        raise ConfigError(f"{model_dir} has no chat template: add chat_template.jinja to serve it as an agent")
    tokens = {key: _token_text(tokenizer_config.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
    return ChatTemplate(source, tokens)


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token or "")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
