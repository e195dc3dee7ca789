"""Text with its secrets replaced by ``[redacted:NAME]``; what stands there is matched by no pattern, so that a text
that was redacted once stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from online_agent.redaction.patterns import DEFAULT_KINDS, KNOWN_FORMS, SecretPattern, own_pattern
from online_agent.types import ToolCall

MAX_KNOWN_CLEAN = 65_536
"""Texts without a secret that are remembered, by hash and length: a client sends its whole history with every call."""

Tell = Callable[[str], None]
"""Is told the name of a pattern each time a match of it was replaced; never what matched."""


@dataclass(frozen=True, slots=True)
class Found:
    """``text[start:end]`` matched the pattern called ``name``."""

    name: str
    start: int
    end: int


def _nobody(name: str) -> None:
    pass


class Redactor:
    def __init__(self, patterns: Sequence[SecretPattern], tell: Tell = _nobody) -> None:
        self._patterns, self._tell = tuple(patterns), tell
        self._clean: set[tuple[int, int]] = set()

    @classmethod
    def of(
        cls, kinds: Sequence[str] = DEFAULT_KINDS, own: Mapping[str, str] | None = None, tell: Tell = _nobody
    ) -> Redactor:
        """The known forms of these kinds, and patterns by name. Raises ValueError for one that cannot be used."""
        known = [pattern for pattern in KNOWN_FORMS if pattern.name in kinds]
        return cls([*known, *(own_pattern(name, expression) for name, expression in (own or {}).items())], tell)

    def text(self, text: str) -> str:
        mark = _mark(text)
        if mark in self._clean:
            return text
        redacted = text
        for pattern in self._patterns:
            if pattern.may_match(redacted):
                redacted = pattern.regex.sub(partial(self._masked, pattern), redacted)
        if redacted == text:
            self._remember(mark)
        return redacted

    def call(self, call: ToolCall) -> ToolCall:
        """Its arguments and what is said of a call that could not be read; a name that was read holds no text."""
        return replace(call, arguments=self.json(call.arguments), error=call.error and self.text(call.error))

    def json(self, value: Any) -> Any:
        """The JSON value with all its texts redacted, the names of its fields too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

    def json_text(self, text: str) -> str:
        """JSON text, redacted as the value it stands for, however it is spelled; other text as such."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.text(text)
        redacted = self.json(value)
        return text if redacted == value else orjson.dumps(redacted).decode()

    def find(self, text: str) -> list[Found]:
        """Every secret of the text, without the part of a match that is kept."""
        mark = _mark(text)
        if mark in self._clean:
            return []
        found = [
            Found(pattern.name, _secret_start(match), match.end())
            for pattern in self._patterns
            if pattern.may_match(text)
            for match in pattern.regex.finditer(text)
        ]
        if not found:
            self._remember(mark)
        return found

    def _remember(self, mark: tuple[int, int]) -> None:
        if len(self._clean) >= MAX_KNOWN_CLEAN:
            self._clean.clear()
        self._clean.add(mark)

    def _masked(self, pattern: SecretPattern, match: re.Match[str]) -> str:
        self._tell(pattern.name)
        return match.string[match.start() : _secret_start(match)] + pattern.mask


def _mark(text: str) -> tuple[int, int]:
    """The hash is keyed by this process: nobody outside can make two texts that share it."""
    return hash(text), len(text)


def texts_of(value: Any) -> list[str]:
    """Every text of a JSON value, the names of its fields too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, item in value.items() for text in (str(key), *texts_of(item))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_of(item)]
    return []


def _secret_start(match: re.Match[str]) -> int:
    return match.end("keep") if "keep" in match.re.groupindex else match.start()
