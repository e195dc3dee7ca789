"""Parameters of changes: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from envs.changes import ChangedEnvironment, check_change
from envs.errors import BadChange
from envs.types import Change
from tests.fakes.environment import NotesEnvironment


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("rename_everything", {}, "no change kind 'rename_everything'; kinds: rename_tool, "),
        ("rename_tool", {"tool": "edit_file"}, "rename_tool: to: Field required"),
        ("rename_tool", {"tool": "edit_file", "to": "patch file"}, "got 'patch file'"),
        ("rename_tool", {"tool": "edit_file", "to": "x", "silent": True}, "silent: Extra inputs"),
        ("rename_tool", {"tool": "edit", "to": "x"}, "no tool 'edit'; tools: list_files, read_file, read_line,"),
        ("rename_tool", {"tool": "edit_file", "to": "submit"}, "there is a tool 'submit' already"),
        ("rename_argument", {"tool": "edit_file", "argument": "text", "to": "x"}, "edit_file has no argument 'text'"),
        ("rename_argument", {"tool": "submit", "argument": "text", "to": "x"}, "arguments: none"),
        ("rename_argument", {"tool": "edit_file", "argument": "old", "to": "new"}, "argument 'new' already"),
        ("swap_arguments", {"tool": "edit_file", "first": "old", "second": "old"}, "both 'old'"),
        ("retype_argument", {"tool": "read_line", "argument": "line", "type": "array"}, "'integer'; only a string"),
        ("add_required_argument", {"tool": "edit_file", "argument": "old"}, "argument 'old' already"),
        ("add_tool", {"tool": "submit", "like": "read_file"}, "there is a tool 'submit' already"),
        ("remove_tool", {"tool": "gone"}, "no tool 'gone'"),
        ("deprecate_tool", {"tool": "read_file", "use": "gone"}, "no tool 'gone'"),
        ("change_output_format", {"tool": "read_file", "format": "xml"}, "got 'xml'"),
        ("change_error_format", {"format": "xml"}, "got 'xml'"),
        ("move_path", {"from": "/src", "to": "lib"}, "no path inside the workspace"),
        ("move_path", {"from": "src", "to": "../lib"}, "no path inside the workspace"),
        ("move_path", {"from": "", "to": "lib"}, "no path inside the workspace"),
        ("move_path", {"from": "src", "to": "src/"}, "lie in each other"),
        ("move_path", {"from": "src", "to": "src/lib"}, "lie in each other"),
        ("change_semantics", {"tool": "read_file", "argument": "path", "counts_from": "one_more"}, "only an integer"),
        ("inject_errors", {"rate": 1.5}, "got 1.5"),
        ("inject_errors", {"rate": 0}, "got 0"),
        ("delay", {"seconds": 1e9}, "got 1000000000.0"),
        ("corrupt_output", {"rate": 0.5, "tool": "gone"}, "no tool 'gone'"),
    ],
)
def test_bad_change_is_refused_and_the_bad_value_named(kind: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(BadChange) as refusal:
        check_change(NotesEnvironment(), kind, params)
    assert words in str(refusal.value)


def test_last_tool_stays() -> None:
    class OneTool(NotesEnvironment):
        def tools(self) -> list[Any]:
            return list(super().tools())[-1:]

    with pytest.raises(BadChange, match="'submit' is the last tool"):
        check_change(OneTool(), "remove_tool", {"tool": "submit"})
    with pytest.raises(BadChange, match="no tool has an argument 'path'"):
        check_change(OneTool(), "move_path", {"from": "a", "to": "b"})


async def texts(kind: str, params: dict[str, Any], calls: int) -> list[str]:
    env = ChangedEnvironment(NotesEnvironment(), [Change("c", kind, params, True)])
    session = await env.start(env.task("train-7"))
    return [(await session.call("read_file", {"path": "src/calc.py"})).text for _ in range(calls)]


async def test_injected_errors_come_at_their_rate_and_the_same_each_time() -> None:
    first = await texts("inject_errors", {"rate": 0.3, "seed": 1}, 400)
    num_errors = sum(text.startswith("error: read_file is not available") for text in first)
    assert 90 <= num_errors <= 150  # 120 expected, standard deviation 9
    assert await texts("inject_errors", {"rate": 0.3, "seed": 1}, 400) == first
    assert await texts("inject_errors", {"rate": 0.3, "seed": 2}, 400) != first


async def test_corrupted_answers_come_at_their_rate_and_keep_their_lines() -> None:
    plain = "def add(a, b):\n    return a - b\n"
    seen = await texts("corrupt_output", {"rate": 0.5, "seed": 1}, 200)
    damaged = [text for text in seen if text != plain]
    assert 70 <= len(damaged) <= 130
    assert all(len(text) == len(plain) and text.count("\n") == 2 for text in damaged)


@pytest.mark.parametrize(
    ("kind", "params", "arguments", "text"),
    [
        (
            "add_required_argument",
            {"tool": "read_file", "argument": "key", "value": "k"},
            {"key": "x"},
            "key must be k",
        ),
        (
            "retype_argument",
            {"tool": "read_file", "argument": "path", "type": "array"},
            {"path": [1]},
            "a list of lines",
        ),
        (
            "retype_argument",
            {"tool": "read_file", "argument": "path", "type": "object"},
            {"path": {}},
            'object {"text"',
        ),
    ],
)
async def test_value_that_a_change_does_not_take_is_an_observation(
    kind: str, params: dict[str, Any], arguments: dict[str, Any], text: str
) -> None:
    env = ChangedEnvironment(NotesEnvironment(), [Change("c", kind, params, True)])
    session = await env.start(env.task("train-0"))
    observation = await session.call("read_file", {"path": "notes.txt", **arguments})
    assert observation.is_error
    assert text in observation.text


async def test_retyped_argument_takes_an_object() -> None:
    params = {"tool": "read_file", "argument": "path", "type": "object"}
    env = ChangedEnvironment(NotesEnvironment(), [Change("c", "retype_argument", params, True)])
    session = await env.start(env.task("train-0"))
    assert (await session.call("read_file", {"path": {"text": "notes.txt"}})).text == "todo\n"


@pytest.mark.parametrize(
    ("format_name", "shown"),
    [
        ("line_numbers", "1: def add(a, b):\n2:     return a - b"),
        ("json", '{"output": "def add(a, b):\\n    return a - b\\n"}'),
        ("upper_prefix", "OUTPUT: def add(a, b):\n    return a - b\n"),
        ("fenced", "```\ndef add(a, b):\n    return a - b\n\n```"),
    ],
)
async def test_output_formats(format_name: str, shown: str) -> None:
    assert await texts("change_output_format", {"tool": "read_file", "format": format_name}, 1) == [shown]
