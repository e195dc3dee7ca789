"""Any environment under changes is itself an environment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from envs.changes.base import Call, Layer, Tools
from envs.changes.kinds import layer_of
from envs.errors import BadChange
from envs.observations import bad_argument_type, bad_arguments, unknown_tool
from envs.protocols import Environment, Session
from envs.types import Artifact, Change, Observation, Split, Task, ToolSpec, Verdict

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
    "array": (list, "a list"),
    "object": (dict, "an object"),
}


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers that hold, innermost first, over the tools of a base environment.

    ``actual``: the tools as they behave; ``documented``: as prompt and schemas show them. ``dormant``: changes that fit
    nothing at present, for example after the change they built on was reverted; they do nothing.
    """

    layers: tuple[Layer, ...]
    documented_layers: tuple[Layer, ...]
    actual: Tools
    documented: Tools
    dormant: tuple[Change, ...]

    @classmethod
    def build(cls, base_tools: Sequence[ToolSpec], changes: Sequence[Change]) -> Stack:
        """Raises BadChange for a change of unknown kind or unusable parameters."""
        pairs = [(change, layer_of(change.kind, change.params)) for change in changes]
        pairs.sort(key=lambda pair: not pair[1].is_innermost)  # stable: the order of the changes otherwise
        actual = documented = tuple(base_tools)
        layers: list[Layer] = []
        shown: list[Layer] = []
        dormant: list[Change] = []
        for change, layer in pairs:
            if not _fits(layer, actual):
                dormant.append(change)
                continue
            layers.append(layer)
            actual = layer.tools(actual)
            if not change.is_silent and _fits(layer, documented):
                shown.append(layer)
                documented = layer.tools(documented)
        return cls(tuple(layers), tuple(shown), actual, documented, tuple(dormant))


class ChangedEnvironment:
    """``base`` under ``changes``, in their order. Shows documented changes, behaves under all.

    Tasks keep the files and data of the base environment; a documented change rewrites only their prompt.
    """

    def __init__(self, base: Environment, changes: Sequence[Change]) -> None:
        self.base = base
        self.changes = tuple(changes)
        self.name, self.version = base.name, base.version
        self._stack = Stack.build(base.tools(), changes)

    @property
    def dormant(self) -> tuple[Change, ...]:
        return self._stack.dormant

    def actual_tools(self) -> Tools:
        """The tools as they behave, silent changes included."""
        return self._stack.actual

    def tools(self) -> Tools:
        return self._stack.documented

    def system_prompt(self) -> str:
        return self._as_documented(self.base.system_prompt())

    def task(self, task_id: str) -> Task:
        return self.documented(self.base.task(task_id))

    def tasks(self, split: Split, start: int, count: int) -> list[Task]:
        return [self.documented(task) for task in self.base.tasks(split, start, count)]

    def task_schema(self) -> Mapping[str, Any]:
        return self.base.task_schema()

    def parse_task(self, given: Mapping[str, Any]) -> Task:
        return self.documented(self.base.parse_task(given))

    async def start(self, task: Task) -> ChangedSession:
        return ChangedSession(await self.base.start(task), self.base.tools(), self.changes, task.id)

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        return await self.base.verify(task, artifact)

    def documented(self, task: Task) -> Task:
        """A task of the base environment as the agent is shown it."""
        prompt = self._as_documented(task.prompt)
        return task if prompt == task.prompt else replace(task, prompt=prompt)

    def _as_documented(self, text: str) -> str:
        for layer in self._stack.documented_layers:
            text = layer.prompt(text)
        return text


class ChangedSession:
    """A session whose calls and answers pass through the layers. The session of the base environment knows of none."""

    def __init__(
        self, session: Session, base_tools: Sequence[ToolSpec], changes: Sequence[Change], task_id: str
    ) -> None:
        self._session, self._base_tools, self._task_id = session, tuple(base_tools), task_id
        self._num_calls = 0
        self._stack = Stack.build(base_tools, changes)

    def set_changes(self, changes: Sequence[Change]) -> None:
        """From the next call on these changes hold. Files and everything else of the episode stay."""
        self._stack = Stack.build(self._base_tools, changes)

    def tools(self) -> Tools:
        """The tools as documented now."""
        return self._stack.documented

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        call = Call(tool, arguments, self._task_id, self._num_calls, self._files)
        self._num_calls += 1
        refusal = check_call(self._stack.actual, tool, arguments)
        if refusal is not None:
            return self._outward(refusal, [(layer, call) for layer in self._stack.layers])
        passed: list[tuple[Layer, Call]] = []
        for depth in reversed(range(len(self._stack.layers))):
            layer = self._stack.layers[depth]
            call = replace(call, files=partial(self._files, depth))
            if delay_s := layer.delay_s(call):
                await asyncio.sleep(delay_s)
            inner = layer.call(call)
            if isinstance(inner, Observation):
                return self._outward(inner, reversed(passed))
            passed.append((layer, call))
            call = inner
        return self._outward(await self._session.call(call.tool, call.arguments), reversed(passed))

    def artifact(self) -> Artifact:
        """What the agent left behind, in the layout of the base environment."""
        return self._session.artifact()

    async def close(self) -> None:
        await self._session.close()

    def _files(self, depth: int = 0) -> Mapping[str, str]:
        """The episode's files as the layers below ``depth`` lay them out."""
        files = self._session.artifact().files
        for layer in self._stack.layers[:depth]:
            files = layer.layout(files)
        return files

    @staticmethod
    def _outward(answer: Observation, passed: Iterable[tuple[Layer, Call]]) -> Observation:
        for layer, call in passed:
            answer = layer.answer(call, answer)
        return answer


def check_change(env: Environment, kind: str, params: Mapping[str, Any]) -> None:
    """Raise BadChange, naming the bad value, unless the change fits the environment as it behaves now."""
    layer = layer_of(kind, params)
    if not isinstance(env, ChangedEnvironment):
        layer.check(tuple(env.tools()))
    elif layer.is_innermost:
        layer.check(tuple(env.base.tools()))
    else:
        layer.check(env.actual_tools())


def check_call(tools: Tools, tool: str, arguments: Mapping[str, Any]) -> Observation | None:
    """What is wrong with a call, in the words the agent gets, or None."""
    spec = next((known for known in tools if known.name == tool), None)
    if spec is None:
        return unknown_tool(tool, [known.name for known in tools])
    if not set(spec.required) <= set(arguments) <= set(spec.argument_names):
        return bad_arguments(tool, spec.argument_names)
    for name, value in arguments.items():
        expected = _TYPES.get(spec.parameters["properties"][name].get("type", ""))
        if expected is not None and not _is_of(value, expected[0]):
            return bad_argument_type(name, expected[1])
    return None


def _is_of(value: Any, expected: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # which Python counts among the whole numbers
        return expected is bool
    return isinstance(value, expected)


def _fits(layer: Layer, tools: Tools) -> bool:
    try:
        layer.check(tools)
    except BadChange:
        return False
    return True
