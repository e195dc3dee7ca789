"""The changes that a demonstration uses, silent, on real repairs in real jails: the old way fails, the new earns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from envs.changes import ChangedEnvironment, check_change
from envs.registry import build_environments
from envs.sandbox.nsjail import NsjailSandbox
from envs.tasks.bug_repair.generator import generate
from envs.types import Change

BUG = generate("train", 0)
PATH = BUG.path
MOVED = PATH.replace("src/", "lib/")
EDIT = {"path": PATH, "old": BUG.buggy, "new": BUG.fixed}
TESTS = BUG.test_path

# kind → (parameters, what the old edit is answered, the edit that works now)
CASES: dict[str, tuple[dict[str, Any], str, tuple[str, Mapping[str, str]]]] = {
    "rename_tool": (
        {"tool": "edit_file", "to": "patch_file"},
        "error: unknown tool edit_file; tools: list_files, read_file, patch_file, run_tests, submit",
        ("patch_file", EDIT),
    ),
    "rename_argument": (
        {"tool": "edit_file", "argument": "old", "to": "before"},
        "error: edit_file needs path, before, new",
        ("edit_file", {"path": PATH, "before": BUG.buggy, "new": BUG.fixed}),
    ),
    "swap_arguments": (
        {"tool": "edit_file", "first": "old", "second": "new"},
        "error: text not found",
        ("edit_file", {"path": PATH, "old": BUG.fixed, "new": BUG.buggy}),
    ),
    "add_required_argument": (
        {"tool": "edit_file", "argument": "reason"},
        "error: edit_file needs path, old, new, reason",
        ("edit_file", {**EDIT, "reason": "it is wrong"}),
    ),
    "move_path": (
        {"from": "src", "to": "lib"},
        f"error: no file {PATH}; files: {MOVED}, {TESTS}",
        ("edit_file", {**EDIT, "path": MOVED}),
    ),
    "change_output_format": ({"tool": "read_file", "format": "line_numbers"}, "ok", ("edit_file", EDIT)),
    "remove_tool": ({"tool": "list_files"}, "ok", ("edit_file", EDIT)),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[NsjailSandbox]:
    box = NsjailSandbox(max_jobs=1, first_uid=28_001)
    yield box
    asyncio.run(box.close())


@pytest.mark.parametrize("kind", CASES)
async def test_repair_under_a_silent_change(sandbox: NsjailSandbox, kind: str) -> None:
    params, old_answer, new_edit = CASES[kind]
    base = build_environments(sandbox)["bug_repair"]
    check_change(base, kind, params)
    env = ChangedEnvironment(base, [Change("c", kind, params, is_silent=True)])
    task = env.task("train-0")
    assert (env.tools(), task) == (base.tools(), base.task("train-0"))
    old = await env.start(task)
    assert (await old.call("edit_file", EDIT)).text == old_answer
    session = await env.start(task)
    assert (await session.call("run_tests", {})).text.startswith("failed: ")
    assert (await session.call(*new_edit)).text == "ok"
    assert (await session.call("run_tests", {})).text == "passed"
    assert (await session.call("submit", {})).is_final
    verdict = await env.verify(task, session.artifact())
    assert (verdict.reward, verdict.evidence["tests_modified"]) == (1.0, False)


async def test_numbered_lines_are_those_of_the_file(sandbox: NsjailSandbox) -> None:
    base = build_environments(sandbox)["bug_repair"]
    params = {"tool": "read_file", "format": "line_numbers"}
    env = ChangedEnvironment(base, [Change("c", "change_output_format", params, is_silent=True)])
    session = await env.start(env.task("train-0"))
    shown = (await session.call("read_file", {"path": PATH})).text.splitlines()
    assert shown == [f"{n}: {line}" for n, line in enumerate(BUG.buggy.splitlines(), 1)]
