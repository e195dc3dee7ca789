"""Stacks of changes: order, silent under documented, changes in the middle of an episode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.changes import ChangedEnvironment, check_change, env_revision
from envs.errors import BadChange
from envs.types import Change
from tests.fakes.environment import FILES, NotesEnvironment


def change(kind: str, *, is_silent: bool = True, **params: Any) -> Change:
    return Change("c", kind, {name.rstrip("_"): value for name, value in params.items()}, is_silent)


RENAME = change("rename_tool", tool="edit_file", to="patch_file")
MOVE = change("move_path", from_="src", to="lib")


def under(*changes: Change) -> ChangedEnvironment:
    return ChangedEnvironment(NotesEnvironment(), changes)


async def answer(env: ChangedEnvironment, tool: str, **arguments: Any) -> str:
    session = await env.start(env.task("train-0"))
    return (await session.call(tool, arguments)).text


async def test_without_changes_it_is_the_environment_itself() -> None:
    env, base = under(), NotesEnvironment()
    assert (env.name, env.version, env.tools(), env.system_prompt()) == (
        *(base.name, base.version, base.tools(), base.system_prompt()),
    )
    assert await answer(env, "read_file", path="notes.txt") == "todo\n"
    with pytest.raises(KeyError):
        env.task("nothing")


async def test_later_change_speaks_the_names_that_earlier_ones_made() -> None:
    env = under(RENAME, change("rename_argument", tool="patch_file", argument="old", to="before"))
    assert await answer(env, "patch_file", path="src/calc.py", before="-", new="+") == "ok"
    assert await answer(env, "patch_file", path="src/calc.py") == "error: patch_file needs path, before, new"


async def test_chain_of_renames_leaves_only_the_last_name() -> None:
    env = under(RENAME, change("rename_tool", tool="patch_file", to="change_file"))
    assert await answer(env, "change_file", path="src/calc.py", old="-", new="+") == "ok"
    for gone in ("edit_file", "patch_file"):
        assert "tools: list_files, read_file, read_line, change_file, submit" in await answer(env, gone)


async def test_two_tools_can_trade_names() -> None:
    env = under(
        change("rename_tool", tool="read_file", to="spare"),
        change("rename_tool", tool="list_files", to="read_file"),
        change("rename_tool", tool="spare", to="list_files"),
    )
    assert await answer(env, "read_file") == "notes.txt\nsrc/calc.py\nsrc/util.py"
    assert await answer(env, "list_files", path="notes.txt") == "todo\n"


async def test_output_formats_stack_from_the_inside_out() -> None:
    numbers = change("change_output_format", tool="read_file", format="line_numbers")
    prefix = change("change_output_format", tool="read_file", format="upper_prefix")
    assert await answer(under(numbers, prefix), "read_file", path="notes.txt") == "OUTPUT: 1: todo"
    assert await answer(under(prefix, numbers), "read_file", path="notes.txt") == "1: OUTPUT: todo"


async def test_error_format_covers_the_errors_of_the_layers_themselves() -> None:
    env = under(RENAME, MOVE, change("change_error_format", format="bare"))
    assert (await answer(env, "edit_file")).startswith("unknown tool edit_file; tools: ")
    assert await answer(env, "read_file", path="src/calc.py") == (
        "no file src/calc.py; files: lib/calc.py, lib/util.py, notes.txt"
    )


async def test_moved_path_works_under_a_renamed_path_argument_whatever_the_order() -> None:
    rename = change("rename_argument", tool="read_file", argument="path", to="name")
    for changes in ((rename, MOVE), (MOVE, rename)):
        assert await answer(under(*changes), "read_file", name="lib/util.py") == FILES["src/util.py"]
        assert "no file src/util.py" in await answer(under(*changes), "read_file", name="src/util.py")


async def test_path_can_move_twice() -> None:
    env = under(MOVE, change("move_path", from_="lib", to="app"))
    assert await answer(env, "read_file", path="app/calc.py") == FILES["src/calc.py"]
    listing = "app/calc.py, app/util.py, notes.txt"
    assert await answer(env, "read_file", path="lib/calc.py") == f"error: no file lib/calc.py; files: {listing}"
    assert await answer(env, "read_file", path="src/calc.py") == f"error: no file src/calc.py; files: {listing}"
    assert await answer(env, "list_files") == "notes.txt\napp/calc.py\napp/util.py"


async def test_edit_of_a_moved_file_lands_in_the_original_layout() -> None:
    env = under(MOVE)
    session = await env.start(env.task("train-0"))
    assert (await session.call("edit_file", {"path": "./lib/calc.py", "old": "-", "new": "+"})).text == "ok"
    assert session.artifact().files["src/calc.py"] == "def add(a, b):\n    return a + b\n"
    assert "lib/calc.py" not in session.artifact().files


async def test_change_that_builds_on_a_reverted_one_lies_dormant() -> None:
    builds_on = change("rename_argument", tool="patch_file", argument="old", to="before")
    assert under(RENAME, builds_on).dormant == ()
    alone = under(builds_on)
    assert alone.dormant == (builds_on,)
    assert await answer(alone, "edit_file", path="src/calc.py", old="-", new="+") == "ok"


def test_documented_change_shows_above_a_silent_one() -> None:
    documented = change("deprecate_tool", is_silent=False, tool="read_file")
    env = under(RENAME, documented)
    assert [tool.name for tool in env.tools()] == ["list_files", "read_file", "read_line", "edit_file", "submit"]
    assert "Deprecated." in env.tools()[1].description


def test_new_change_is_checked_against_the_tools_as_they_behave() -> None:
    env = under(RENAME)
    check_change(env, "remove_tool", {"tool": "patch_file"})
    with pytest.raises(BadChange, match=r"no tool 'edit_file'; tools: .*patch_file"):
        check_change(env, "remove_tool", {"tool": "edit_file"})


def test_move_is_checked_although_its_argument_has_another_name() -> None:
    tools = ("read_file", "read_line", "edit_file")
    env = under(*(change("rename_argument", tool=tool, argument="path", to="name") for tool in tools))
    check_change(env, "move_path", {"from": "src", "to": "lib"})


async def test_c34_tool_renamed_in_mid_episode_answers_with_the_tools_there_are() -> None:
    env = under()
    session = await env.start(env.task("train-0"))
    assert (await session.call("edit_file", {"path": "notes.txt", "old": "todo", "new": "done"})).text == "ok"
    session.set_changes([change("rename_tool", is_silent=False, tool="read_file", to="show_file")])
    assert [tool.name for tool in session.tools()] == ["list_files", "show_file", "read_line", "edit_file", "submit"]
    old = await session.call("read_file", {"path": "notes.txt"})
    assert old.text == "error: unknown tool read_file; tools: list_files, show_file, read_line, edit_file, submit"
    assert (old.is_error, old.is_final) == (True, False)
    assert (await session.call("show_file", {"path": "notes.txt"})).text == "done\n"
    session.set_changes([])
    assert (await session.call("read_file", {"path": "notes.txt"})).text == "done\n"


def test_revision_names_what_holds_and_not_who_asked_for_it() -> None:
    base = NotesEnvironment()
    revision = env_revision(base, [RENAME, MOVE])
    again = [Change("other-id", each.kind, dict(each.params), each.is_silent) for each in (RENAME, MOVE)]
    assert env_revision(base, again) == revision
    assert len(revision) == 12
    int(revision, 16)
    others = [
        env_revision(base, []),
        env_revision(base, [RENAME]),
        env_revision(base, [MOVE, RENAME]),
        env_revision(base, [change("rename_tool", is_silent=False, tool="edit_file", to="patch_file"), MOVE]),
        env_revision(base, [change("rename_tool", tool="edit_file", to="patch"), MOVE]),
    ]
    assert len({revision, *others}) == 6


POOL = [
    RENAME,
    MOVE,
    change("rename_tool", tool="patch_file", to="edit_file"),
    change("rename_argument", tool="edit_file", argument="old", to="before"),
    change("swap_arguments", tool="edit_file", first="old", second="new"),
    change("retype_argument", tool="edit_file", argument="new", type="object"),
    change("add_required_argument", tool="read_file", argument="why"),
    change("add_tool", tool="show", like="read_file"),
    change("remove_tool", tool="read_file"),
    change("deprecate_tool", tool="show", use="read_line"),
    change("change_output_format", tool="list_files", format="json"),
    change("change_error_format", format="code"),
    change("inject_errors", rate=0.5),
    change("corrupt_output", rate=0.5),
]


@given(st.lists(st.sampled_from(POOL), max_size=8))
def test_documented_stack_shows_what_behaves(changes: list[Change]) -> None:
    env = under(*(Change(c.id, c.kind, c.params, False) for c in changes))
    assert env.tools() == env.actual_tools()


@given(st.lists(st.sampled_from(POOL), max_size=8), st.sampled_from(["edit_file", "show", "read_file", "nope"]))
async def test_any_call_under_any_stack_is_an_observation(changes: list[Change], tool: str) -> None:
    env = under(*changes)
    known = {spec.name: spec for spec in env.actual_tools()}
    fitting = dict.fromkeys(known[tool].argument_names, "x") if tool in known else {}
    for arguments in ({}, fitting, {"path": None, "surplus": []}):
        assert await answer(env, tool, **arguments) != ""
