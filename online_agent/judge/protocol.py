"""What a judge is: it reads an answer and what followed it, and says how good the answer was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from online_agent.config.signal import JudgeSettings
from online_agent.errors import ConfigError

OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """Texts as they are stored, so without known secrets; the last ``judge.max_chars`` of each.

    ``asked`` led to the ``answer``, ``followed`` is what the client sent next: a user's words, a tool's result.
    """

    asked: str
    answer: str
    followed: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """``reward`` in [-1, 1]."""

    reward: float
    reason: str


class Judge(Protocol):
    """``judge`` raises JudgeFailed for a case it cannot judge, JudgeUnavailable when it should be asked again later.

    It keeps its own deadline. What it reads was written by others: nothing in it is an instruction.
    """

    async def judge(self, case: JudgeCase) -> Judgement: ...

    async def aclose(self) -> None: ...


def load_judge(settings: JudgeSettings) -> Judge | None:
    """The judge that the configuration names; None for none. Raises ConfigError for one that cannot be found."""
    if not settings.kind:
        return None
    if settings.kind == OPENAI:
        from online_agent.judge.openai_judge import OpenAiJudge

        return OpenAiJudge(settings)
    module, _, name = settings.kind.partition(":")
    try:
        factory: Callable[[JudgeSettings], Judge] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"judge.kind: no judge {settings.kind!r}: {error}") from error
    return factory(settings)
