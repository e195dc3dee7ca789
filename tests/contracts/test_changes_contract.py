"""Each kind of change, documented and silent: what is shown, what behaves, and that the task can still be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from envs.changes import CHANGE_KINDS, ChangedEnvironment, check_change
from envs.types import Change, Observation, ToolSpec
from tests.fakes.environment import FILES, TOOLS, NotesEnvironment

Arguments = Mapping[str, Any]
FIX: Arguments = {"path": "src/calc.py", "old": "-", "new": "+"}
TOOL_NAMES = "list_files, read_file, read_line, edit_file, submit"


@dataclass(frozen=True)
class Case:
    """``old_way``: a call that was right before and its answer now. ``new_way``: the call that is right now."""

    params: dict[str, Any]
    old_way: tuple[str, Arguments, str]
    new_way: tuple[str, Arguments, str]
    shown: dict[str, Any] = field(default_factory=dict)
    fix: tuple[str, Arguments] = ("edit_file", FIX)


CASES: dict[str, Case] = {
    "rename_tool": Case(
        {"tool": "edit_file", "to": "patch_file"},
        (
            "edit_file",
            FIX,
            "error: unknown tool edit_file; tools: list_files, read_file, read_line, patch_file, submit",
        ),
        ("patch_file", FIX, "ok"),
        {"names": "list_files, read_file, read_line, patch_file, submit", "prompt": "change with patch_file"},
        ("patch_file", FIX),
    ),
    "rename_argument": Case(
        {"tool": "edit_file", "argument": "old", "to": "before"},
        ("edit_file", FIX, "error: edit_file needs path, before, new"),
        ("edit_file", {"path": "src/calc.py", "before": "-", "new": "+"}, "ok"),
        {"arguments": {"edit_file": ("path", "before", "new")}},
        ("edit_file", {"path": "src/calc.py", "before": "-", "new": "+"}),
    ),
    "swap_arguments": Case(
        {"tool": "edit_file", "first": "old", "second": "new"},
        ("edit_file", FIX, "error: text not found"),
        ("edit_file", {"path": "src/calc.py", "old": "+", "new": "-"}, "ok"),
        {"descriptions": {("edit_file", "old"): "the new", ("edit_file", "new"): "the old"}},
        ("edit_file", {"path": "src/calc.py", "old": "+", "new": "-"}),
    ),
    "retype_argument": Case(
        {"tool": "edit_file", "argument": "old", "type": "array"},
        ("edit_file", FIX, "error: old must be a list"),
        ("edit_file", {**FIX, "old": ["def add(a, b):", "    return a - b"], "new": "pass"}, "ok"),
        {"types": {("edit_file", "old"): "array"}},
        ("edit_file", {**FIX, "old": ["-"]}),
    ),
    "add_required_argument": Case(
        {"tool": "edit_file", "argument": "reason", "description": "why"},
        ("edit_file", FIX, "error: edit_file needs path, old, new, reason"),
        ("edit_file", {**FIX, "reason": "wrong sign"}, "ok"),
        {"arguments": {"edit_file": ("path", "old", "new", "reason")}},
        ("edit_file", {**FIX, "reason": "wrong sign"}),
    ),
    "add_tool": Case(
        {"tool": "cat", "like": "read_file"},
        ("read_file", {"path": "notes.txt"}, "todo\n"),
        ("cat", {"path": "notes.txt"}, "todo\n"),
        {"names": TOOL_NAMES + ", cat"},
    ),
    "remove_tool": Case(
        {"tool": "read_file"},
        (
            "read_file",
            {"path": "notes.txt"},
            "error: unknown tool read_file; tools: list_files, read_line, edit_file, submit",
        ),
        ("read_line", {"path": "notes.txt", "line": 0}, "todo"),
        {"names": "list_files, read_line, edit_file, submit"},
    ),
    "deprecate_tool": Case(
        {"tool": "read_file", "use": "read_line"},
        ("read_file", {"path": "notes.txt"}, "warning: read_file is deprecated, use read_line\ntodo\n"),
        ("read_line", {"path": "notes.txt", "line": 0}, "todo"),
        {"notes": {"read_file": "Show a file. Deprecated, use read_line."}},
    ),
    "change_output_format": Case(
        {"tool": "read_file", "format": "line_numbers"},
        ("read_file", {"path": "src/calc.py"}, "1: def add(a, b):\n2:     return a - b"),
        ("read_file", {"path": "no"}, "error: no file no; files: notes.txt, src/calc.py, src/util.py"),
        {"notes": {"read_file": "Show a file. The answer has line numbers."}},
    ),
    "change_error_format": Case(
        {"format": "json"},
        ("edit_file", {**FIX, "old": "?"}, '{"error": "text not found"}'),
        ("read_file", {"path": "notes.txt"}, "todo\n"),
    ),
    "move_path": Case(
        {"from": "src/", "to": "lib"},
        (
            "read_file",
            {"path": "src/calc.py"},
            "error: no file src/calc.py; files: lib/calc.py, lib/util.py, notes.txt",
        ),
        ("read_file", {"path": "lib/calc.py"}, FILES["src/calc.py"]),
        {"task": "fix lib/calc.py: add"},
        ("edit_file", {**FIX, "path": "lib/calc.py"}),
    ),
    "change_semantics": Case(
        {"tool": "read_line", "argument": "line", "counts_from": "one_more"},
        ("read_line", {"path": "src/calc.py", "line": 1}, "def add(a, b):"),
        ("read_line", {"path": "src/calc.py", "line": 2}, "    return a - b"),
        {"notes": {"read_line": "Show one line, counted from 0. line is one more than before."}},
    ),
    "inject_errors": Case(
        {"rate": 1.0, "tool": "read_file"},
        ("read_file", {"path": "notes.txt"}, "error: read_file is not available, try again"),
        ("read_line", {"path": "notes.txt", "line": 0}, "todo"),
        {"notes": {"read_file": "Show a file. May fail: try again."}},
    ),
    "delay": Case(
        {"seconds": 0.05, "tool": "read_file"},
        ("read_file", {"path": "notes.txt"}, "todo\n"),
        ("read_line", {"path": "notes.txt", "line": 0}, "todo"),
        {"notes": {"read_file": "Show a file. Takes a while."}},
    ),
    "corrupt_output": Case(
        {"rate": 1.0, "seed": 3, "tool": "read_file"},
        ("read_file", {"path": "src/calc.py"}, "def add(a, #):\n    retur# a - b\n"),
        ("read_line", {"path": "notes.txt", "line": 0}, "todo"),
        {"notes": {"read_file": "Show a file. The answer may be damaged."}},
    ),
}


def changed(kind: str, *, is_silent: bool) -> ChangedEnvironment:
    return ChangedEnvironment(NotesEnvironment(), [Change("c1", kind, CASES[kind].params, is_silent)])


def by_name(tools: tuple[ToolSpec, ...]) -> dict[str, ToolSpec]:
    return {tool.name: tool for tool in tools}


async def answer(env: ChangedEnvironment, tool: str, arguments: Arguments) -> Observation:
    session = await env.start(env.task("train-0"))
    return await session.call(tool, arguments)


def test_every_kind_has_a_case_and_a_schema_that_closes_its_parameters() -> None:
    assert set(CASES) == set(CHANGE_KINDS)
    for schema in CHANGE_KINDS.values():
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert schema["description"]


@pytest.mark.parametrize("kind", CASES)
def test_change_that_fits_is_accepted(kind: str) -> None:
    check_change(NotesEnvironment(), kind, CASES[kind].params)


@pytest.mark.parametrize("kind", CASES)
def test_silent_change_shows_nothing(kind: str) -> None:
    env, base = changed(kind, is_silent=True), NotesEnvironment()
    assert env.tools() == TOOLS
    assert env.system_prompt() == base.system_prompt()
    assert env.task("train-0") == base.task("train-0")
    assert env.tasks("heldout", 3, 2) == base.tasks("heldout", 3, 2)


@pytest.mark.parametrize("kind", CASES)
def test_documented_change_shows_the_new_state_and_nothing_else(kind: str) -> None:
    env, shown = changed(kind, is_silent=False), CASES[kind].shown
    tools = by_name(env.tools())
    assert ", ".join(tools) == shown.get("names", TOOL_NAMES)
    assert shown.get("prompt", "change with edit_file") in env.system_prompt()
    assert env.task("train-0").prompt == shown.get("task", "fix src/calc.py: add")
    for name, note in shown.get("notes", {}).items():
        assert tools[name].description == note
    for name, arguments in shown.get("arguments", {}).items():
        assert tools[name].argument_names == tools[name].required == arguments
    for (name, argument), text in shown.get("descriptions", {}).items():
        assert tools[name].parameters["properties"][argument]["description"] == text
    for (name, argument), type_name in shown.get("types", {}).items():
        assert tools[name].parameters["properties"][argument]["type"] == type_name
    touched = {*shown.get("notes", {}), *shown.get("arguments", {})}
    touched |= {name for name, _ in (*shown.get("descriptions", {}), *shown.get("types", {}))}
    assert [tool for name, tool in tools.items() if tool in TOOLS or name in touched or "names" in shown] == list(
        tools.values()
    )


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("kind", CASES)
async def test_documented_or_silent_it_behaves_the_same(kind: str, is_silent: bool) -> None:
    env = changed(kind, is_silent=is_silent)
    for tool, arguments, text in (CASES[kind].old_way, CASES[kind].new_way):
        observation = await answer(env, tool, arguments)
        assert observation.text == text
        assert observation.is_error == ("error" in text)


@pytest.mark.parametrize("kind", CASES)
async def test_task_can_be_done_and_the_artifact_is_in_the_original_layout(kind: str) -> None:
    env = changed(kind, is_silent=True)
    task = env.task("train-0")
    session = await env.start(task)
    assert (await session.call(*CASES[kind].fix)).text == "ok"
    final = await session.call("submit", {})
    assert final.is_final
    artifact = session.artifact()
    await session.close()
    assert sorted(artifact.files) == sorted(FILES)
    assert artifact.is_submitted
    assert (await env.verify(task, artifact)).reward == 1.0


@pytest.mark.parametrize("kind", CASES)
async def test_unknown_tool_and_bad_arguments_are_observations_under_any_change(kind: str) -> None:
    env = changed(kind, is_silent=True)
    names = ", ".join(tool.name for tool in env.actual_tools())
    for tool, arguments in (("no_such_tool", {}), ("submit", {"surplus": 1}), ("read_line", {"path": 1, "line": True})):
        observation = await answer(env, tool, arguments)
        assert observation.is_error
        assert not observation.is_final
    assert names in (await answer(env, "no_such_tool", {})).text
