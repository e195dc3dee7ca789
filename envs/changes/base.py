"""What a change is: a layer between the agent and an environment.

A layer says how the tools look once it holds (``tools``), what a call becomes on its way in (``call``) and what an
answer becomes on its way out (``answer``). Layers stack in the order of the changes, the last one nearest the agent;
each sees the names that the layers before it made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from envs.errors import BadChange
from envs.types import Observation, ToolSpec

Tools = tuple[ToolSpec, ...]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Rate = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call at one level of the stack. ``files``: the episode's files, where the level below has them."""

    tool: str
    arguments: Mapping[str, Any]
    task_id: str
    index: int
    files: Callable[[], Mapping[str, str]]

    def chance(self, seed: int, name: str) -> random.Random:
        """The same draws for the same task, call and seed."""
        return random.Random(f"{name}:{seed}:{self.task_id}:{self.index}")


class Layer(BaseModel):
    """A kind of change with its parameters. The defaults leave everything as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    is_innermost: ClassVar[bool] = False

    def check(self, tools: Tools) -> None:
        """Raise BadChange, naming the bad value, unless the change fits these tools."""

    def tools(self, tools: Tools) -> Tools:
        return tools

    def prompt(self, text: str) -> str:
        """The system prompt or a task's prompt once the change is documented."""
        return text

    def layout(self, files: Mapping[str, str]) -> Mapping[str, str]:
        """Where the files of the level below lie on this one."""
        return files

    def call(self, call: Call) -> Call | Observation:
        """What the next level in is asked, or the answer if it is not asked at all."""
        return call

    def answer(self, call: Call, answer: Observation) -> Observation:
        return answer

    def delay_s(self, call: Call) -> float:
        return 0.0


def find_tool(tools: Sequence[ToolSpec], name: str) -> ToolSpec:
    """Raises BadChange with the tools there are."""
    for tool in tools:
        if tool.name == name:
            return tool
    raise BadChange(f"no tool {name!r}; tools: {', '.join(tool.name for tool in tools)}")


def check_argument(tool: ToolSpec, argument: str) -> None:
    if argument not in tool.argument_names:
        known = ", ".join(tool.argument_names) or "none"
        raise BadChange(f"{tool.name} has no argument {argument!r}; arguments: {known}")


def check_new_tool(tools: Sequence[ToolSpec], name: str) -> None:
    if any(tool.name == name for tool in tools):
        raise BadChange(f"there is a tool {name!r} already")


def check_new_argument(tool: ToolSpec, argument: str) -> None:
    if argument in tool.argument_names:
        raise BadChange(f"{tool.name} has an argument {argument!r} already")


def with_tool(tools: Tools, name: str, change: Callable[[ToolSpec], ToolSpec]) -> Tools:
    """The tools with ``change`` applied to the one of that name."""
    return tuple(change(tool) if tool.name == name else tool for tool in tools)


def with_properties(tool: ToolSpec, properties: Mapping[str, Mapping[str, Any]], required: Sequence[str]) -> ToolSpec:
    return replace(tool, parameters={**tool.parameters, "properties": dict(properties), "required": list(required)})


def with_note(tool: ToolSpec, note: str) -> ToolSpec:
    """The tool with a sentence added to its description."""
    return replace(tool, description=f"{tool.description} {note}".strip())


def properties_of(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    return dict(tool.parameters.get("properties", {}))
