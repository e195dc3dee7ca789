"""Changes to what a tool answers, and faults of the world that answers it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from envs.changes.base import Call, Layer, Rate, Tools, find_tool, with_note, with_tool
from envs.observations import error
from envs.types import Observation

CORRUPTED_SHARE = 0.2
MAX_DELAY_S = 10.0


def _numbered(text: str) -> str:
    return "\n".join(f"{number}: {line}" for number, line in enumerate(text.splitlines(), 1))


class ChangeOutputFormat(Layer):
    """A tool's answers look different; errors stay as they are.

    line_numbers: ``1: first line``; json: ``{"output": text}``; upper_prefix: ``OUTPUT: text``; fenced: between
    two lines of three backquotes.
    """

    kind: ClassVar[str] = "change_output_format"
    tool: str
    format: Literal["line_numbers", "json", "upper_prefix", "fenced"]

    def check(self, tools: Tools) -> None:
        find_tool(tools, self.tool)

    def tools(self, tools: Tools) -> Tools:
        notes = {
            "line_numbers": "The answer has line numbers.",
            "json": 'The answer is JSON: {"output": ...}.',
            "upper_prefix": "The answer starts with OUTPUT.",
            "fenced": "The answer is fenced by ``` lines.",
        }
        return with_tool(tools, self.tool, lambda tool: with_note(tool, notes[self.format]))

    def answer(self, call: Call, answer: Observation) -> Observation:
        if call.tool != self.tool or answer.is_error:
            return answer
        text = answer.text
        shown = {
            "line_numbers": _numbered(text),
            "json": json.dumps({"output": text}),
            "upper_prefix": f"OUTPUT: {text}",
            "fenced": f"```\n{text}\n```",
        }
        return replace(answer, text=shown[self.format])


class ChangeErrorFormat(Layer):
    """Errors of all tools read differently. json: ``{"error": ...}``; code: ``E1 ...``; bare: without ``error:``."""

    kind: ClassVar[str] = "change_error_format"
    format: Literal["json", "code", "bare"]

    def answer(self, call: Call, answer: Observation) -> Observation:
        if not answer.is_error:
            return answer
        message = answer.text.removeprefix("error: ")
        shown = {"json": json.dumps({"error": message}), "code": f"E1 {message}", "bare": message}
        return replace(answer, text=shown[self.format])


class _OfTools(Layer):
    """Concerns one tool, or all of them where none is named."""

    tool: str | None = None

    def check(self, tools: Tools) -> None:
        if self.tool is not None:
            find_tool(tools, self.tool)

    def concerns(self, call: Call) -> bool:
        return self.tool is None or call.tool == self.tool

    def noted(self, tools: Tools, note: str) -> Tools:
        return tuple(with_note(tool, note) if self.tool in (None, tool.name) else tool for tool in tools)


class InjectErrors(_OfTools):
    """A share of the calls fails without having done anything; the same ones for the same task and seed."""

    kind: ClassVar[str] = "inject_errors"
    rate: Rate
    seed: int = 0

    def tools(self, tools: Tools) -> Tools:
        return self.noted(tools, "May fail: try again.")

    def call(self, call: Call) -> Call | Observation:
        if self.concerns(call) and call.chance(self.seed, self.kind).random() < self.rate:
            return error(f"{call.tool} is not available, try again")
        return call


class CorruptOutput(_OfTools):
    """A share of the answers has a fifth of its characters replaced by ``#``."""

    kind: ClassVar[str] = "corrupt_output"
    rate: Rate
    seed: int = 0

    def tools(self, tools: Tools) -> Tools:
        return self.noted(tools, "The answer may be damaged.")

    def answer(self, call: Call, answer: Observation) -> Observation:
        chance = call.chance(self.seed, self.kind)
        if not self.concerns(call) or chance.random() >= self.rate:
            return answer
        damaged = ["#" if char != "\n" and chance.random() < CORRUPTED_SHARE else char for char in answer.text]
        return replace(answer, text="".join(damaged))


class Delay(_OfTools):
    """Calls take longer."""

    kind: ClassVar[str] = "delay"
    seconds: Annotated[float, Field(gt=0, le=MAX_DELAY_S)]

    def tools(self, tools: Tools) -> Tools:
        return self.noted(tools, "Takes a while.")

    def delay_s(self, call: Call) -> float:
        return self.seconds if self.concerns(call) else 0.0
