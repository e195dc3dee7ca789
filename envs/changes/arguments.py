"""Changes to the arguments of a tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from envs.changes.base import (
    Call,
    Layer,
    Name,
    Tools,
    check_argument,
    check_new_argument,
    find_tool,
    properties_of,
    with_note,
    with_properties,
    with_tool,
)
from envs.errors import BadChange
from envs.observations import bad_argument_type, error
from envs.types import Observation, ToolSpec


class RenameArgument(Layer):
    """An argument has another name; the old one is refused."""

    kind: ClassVar[str] = "rename_argument"
    tool: str
    argument: str
    to: Name

    def check(self, tools: Tools) -> None:
        tool = find_tool(tools, self.tool)
        check_argument(tool, self.argument)
        check_new_argument(tool, self.to)

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, self._rename)

    def _rename(self, tool: ToolSpec) -> ToolSpec:
        properties = {self._named(name): schema for name, schema in properties_of(tool).items()}
        return with_properties(tool, properties, [self._named(name) for name in tool.required])

    def _named(self, name: str) -> str:
        return self.to if name == self.argument else name

    def call(self, call: Call) -> Call | Observation:
        if call.tool != self.tool:
            return call
        inner = {self.argument if name == self.to else name: value for name, value in call.arguments.items()}
        return replace(call, arguments=inner)


class SwapArguments(Layer):
    """Two arguments trade meanings: what was given as ``first`` is now given as ``second`` and the other way round."""

    kind: ClassVar[str] = "swap_arguments"
    tool: str
    first: str
    second: str

    def check(self, tools: Tools) -> None:
        tool = find_tool(tools, self.tool)
        check_argument(tool, self.first)
        check_argument(tool, self.second)
        if self.first == self.second:
            raise BadChange(f"first and second are both {self.first!r}")

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, self._swap)

    def _swap(self, tool: ToolSpec) -> ToolSpec:
        properties = properties_of(tool)
        swapped = {name: properties[self._other(name)] for name in properties}
        return with_properties(tool, swapped, [name for name in swapped if self._other(name) in tool.required])

    def _other(self, name: str) -> str:
        return {self.first: self.second, self.second: self.first}.get(name, name)

    def call(self, call: Call) -> Call | Observation:
        if call.tool != self.tool:
            return call
        return replace(call, arguments={self._other(name): value for name, value in call.arguments.items()})


class AddRequiredArgument(Layer):
    """A tool wants one more text. With ``value`` given, only that text will do."""

    kind: ClassVar[str] = "add_required_argument"
    tool: str
    argument: Name
    description: str = Field("required", max_length=200)
    value: str | None = Field(None, max_length=200)

    def check(self, tools: Tools) -> None:
        check_new_argument(find_tool(tools, self.tool), self.argument)

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, self._add)

    def _add(self, tool: ToolSpec) -> ToolSpec:
        schema: dict[str, Any] = {"type": "string", "description": self.description}
        if self.value is not None:
            schema["enum"] = [self.value]
        properties = {**properties_of(tool), self.argument: schema}
        return with_properties(tool, properties, [*tool.required, self.argument])

    def call(self, call: Call) -> Call | Observation:
        if call.tool != self.tool:
            return call
        inner = {name: value for name, value in call.arguments.items() if name != self.argument}
        if self.value is not None and call.arguments.get(self.argument) != self.value:
            return error(f"{self.argument} must be {self.value}")
        return replace(call, arguments=inner)


class RetypeArgument(Layer):
    """A text argument has another JSON type: a list of lines, or an object ``{"text": ...}``."""

    kind: ClassVar[str] = "retype_argument"
    tool: str
    argument: str
    type: Literal["array", "object"]

    def check(self, tools: Tools) -> None:
        tool = find_tool(tools, self.tool)
        check_argument(tool, self.argument)
        old = properties_of(tool)[self.argument].get("type")
        if old != "string":
            raise BadChange(f"{self.tool}.{self.argument} is of type {old!r}; only a string can be retyped")

    def tools(self, tools: Tools) -> Tools:
        return with_tool(tools, self.tool, self._retype)

    def _retype(self, tool: ToolSpec) -> ToolSpec:
        properties = properties_of(tool)
        shape: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
        if self.type == "object":
            shape = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        properties[self.argument] = {**properties[self.argument], **shape}
        return with_properties(tool, properties, tool.required)

    def call(self, call: Call) -> Call | Observation:
        if call.tool != self.tool or self.argument not in call.arguments:
            return call
        value = call.arguments[self.argument]
        if self.type == "array":
            if not (isinstance(value, list) and all(isinstance(line, str) for line in value)):
                return bad_argument_type(self.argument, "a list of lines")
            text = "\n".join(value)
        else:
            if not (isinstance(value, dict) and isinstance(value.get("text"), str)):
                return bad_argument_type(self.argument, 'an object {"text": ...}')
            text = value["text"]
        return replace(call, arguments={**call.arguments, self.argument: text})


class ChangeSemantics(Layer):
    """A whole-number argument, such as a line, counts from another start than the environment's own."""

    kind: ClassVar[str] = "change_semantics"
    tool: str
    argument: str
    counts_from: Literal["one_more", "one_less"]

    def check(self, tools: Tools) -> None:
        tool = find_tool(tools, self.tool)
        check_argument(tool, self.argument)
        old = properties_of(tool)[self.argument].get("type")
        if old != "integer":
            raise BadChange(f"{self.tool}.{self.argument} is of type {old!r}; only an integer can count differently")

    def tools(self, tools: Tools) -> Tools:
        more = "more" if self.counts_from == "one_more" else "less"
        return with_tool(tools, self.tool, lambda tool: with_note(tool, f"{self.argument} is one {more} than before."))

    def call(self, call: Call) -> Call | Observation:
        if call.tool != self.tool or self.argument not in call.arguments:
            return call
        shift = -1 if self.counts_from == "one_more" else 1
        return replace(call, arguments={**call.arguments, self.argument: call.arguments[self.argument] + shift})
