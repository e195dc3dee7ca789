"""Changes to which tools there are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from envs.changes.base import Call, Layer, Name, Tools, check_new_tool, find_tool, with_note, with_tool
from envs.errors import BadChange
from envs.types import Observation


class RenameTool(Layer):
    """A tool has another name; the old one is unknown."""

    kind: ClassVar[str] = "rename_tool"
    tool: str
    to: Name

    def check(self, tools: Tools) -> None:
        find_tool(tools, self.tool)
        check_new_tool(tools, self.to)

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, lambda tool: replace(tool, name=self.to))

    def prompt(self, text: str) -> str:
        return re.sub(rf"\b{re.escape(self.tool)}\b", self.to, text)

    def call(self, call: Call) -> Call | Observation:
        return replace(call, tool=self.tool) if call.tool == self.to else call


class RemoveTool(Layer):
    """A tool is gone."""

    kind: ClassVar[str] = "remove_tool"
    tool: str

    def check(self, tools: Tools) -> None:
        find_tool(tools, self.tool)
        if len(tools) == 1:
            raise BadChange(f"{self.tool!r} is the last tool")

    def tools(self, tools: Tools) -> Tools:
        return tuple(tool for tool in tools if tool.name != self.tool)


class AddTool(Layer):
    """One more tool, which does what ``like`` does."""

    kind: ClassVar[str] = "add_tool"
    tool: Name
    like: str
    description: str = Field("", max_length=200)

    def check(self, tools: Tools) -> None:
        find_tool(tools, self.like)
        check_new_tool(tools, self.tool)

    def tools(self, tools: Tools) -> Tools:
        model = find_tool(tools, self.like)
        return (*tools, replace(model, name=self.tool, description=self.description or model.description))

    def call(self, call: Call) -> Call | Observation:
        return replace(call, tool=self.like) if call.tool == self.tool else call


class DeprecateTool(Layer):
    """A tool works on, and each answer starts with a warning."""

    kind: ClassVar[str] = "deprecate_tool"
    tool: str
    use: str | None = None

    def check(self, tools: Tools) -> None:
        find_tool(tools, self.tool)
        if self.use is not None:
            find_tool(tools, self.use)

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, lambda tool: with_note(tool, f"Deprecated{self._instead}."))

    @property
    def _instead(self) -> str:
        return f", use {self.use}" if self.use else ""

    def answer(self, call: Call, answer: Observation) -> Observation:
        if call.tool != self.tool:
            return answer
        return replace(answer, text=f"warning: {self.tool} is deprecated{self._instead}\n{answer.text}")
