"""What an answer amounts to, told from its text: what the alarms per weight version count."""

from __future__ import annotations

import re

from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.calls import ChatCall
from online_agent.gateway.sampler import SampledChoice
from online_agent.rendering.tool_calls import CLOSE_TAG, OPEN_TAG
from online_agent.types import AnswerKind

_REFUSAL = re.compile(
    r"\s*[^.!?\n]{0,100}?\b(?:i\s?(?:can'?t|cannot|can not|won'?t|will not)\s+(?:help|assist|do that|comply|provide)"
    r"|(?:i'?m|i am) (?:not able|unable) to\b|(?:decline|refuse) to\b)",
    re.IGNORECASE,
)
"""In the first sentence of an answer. Counts shares, judges nothing: what it misses, it misses under every version."""


def offers_tools(call: ChatCall) -> bool:
    return bool(call.tools) and call.tool_choice.mode != "none"


def answer_kind(call: ChatCall, choice: SampledChoice) -> AnswerKind | None:
    """None for an answer that was cut off: it would have gone on."""
    answer = choice.answer
    if choice.finish in ("cancelled", "length"):
        return None
    if offers_tools(call) and _has_broken_call(answer):
        return AnswerKind.BROKEN_CALL
    if answer.calls:
        return AnswerKind.CALL
    if not answer.text.strip():
        return AnswerKind.EMPTY
    return AnswerKind.REFUSAL if _REFUSAL.match(answer.text.replace("’", "'")) else AnswerKind.TEXT


def _has_broken_call(answer: AnswerText) -> bool:
    """The reader says so, whatever the family; a closing mark alone stays in the text."""
    return bool(answer.unread) or OPEN_TAG in answer.text or CLOSE_TAG in answer.text
