"""What the tools answer. A policy is trained on these very texts."""

from __future__ import annotations

import pytest

from envs.sandbox.nsjail import NsjailSandbox
from envs.tasks.bug_repair.bugs import BugKind
from envs.tasks.bug_repair.environment import BugRepair, as_task
from envs.tasks.bug_repair.generator import BugTask, Case
from envs.tasks.bug_repair.session import read_result
from envs.types import SandboxResult

ADD = BugTask(
    family="add",
    kind=BugKind.WRONG_OPERATOR,
    path="src/calc.py",
    function="add",
    buggy="def add(a, b):\n    return a - b\n",
    fixed="def add(a, b):\n    return a + b\n",
    wrong_edits=(),
    visible=(Case((2, 0), 2), Case((2, 3), 5)),
    hidden=(Case((1, 1), 2),),
    symptom=(Case((2, 3), 5), -1),
)
TASK = as_task("train-0", "train", ADD)


@pytest.fixture
async def session():
    sandbox = NsjailSandbox(max_jobs=1)
    yield await BugRepair(sandbox).start(TASK)
    await sandbox.close()


async def answer(session, tool, **arguments):
    return (await session.call(tool, arguments)).text


async def test_an_episode_from_first_look_to_submission(session):
    assert TASK.prompt == "fix src/calc.py: add(2, 3) is -1, want 5"
    assert await answer(session, "list_files") == "src/calc.py\ntests/test_calc.py"
    assert await answer(session, "read_file", path="src/calc.py") == "def add(a, b):\n    return a - b\n"
    assert await answer(session, "run_tests") == "failed: add(2, 3) is -1, want 5"
    assert await answer(session, "edit_file", path="src/calc.py", old="-", new="+") == "ok"
    assert await answer(session, "run_tests") == "passed"
    last = await session.call("submit", {})
    assert (last.text, last.is_final) == ("ok", True)
    assert session.artifact().is_submitted
    assert session.artifact().files["src/calc.py"] == ADD.fixed


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("read_file", {"path": "src/x.py"}, "error: no file src/x.py; files: src/calc.py, tests/test_calc.py"),
        ("edit_file", {"path": "src/calc.py", "old": "*", "new": "+"}, "error: text not found"),
        ("edit_file", {"path": "src/calc.py", "old": "", "new": "+"}, "error: text not found"),
        ("edit_file", {"path": "src/calc.py"}, "error: edit_file needs path, old, new"),
        ("read_file", {"path": "src/calc.py", "mode": "r"}, "error: read_file needs path"),
        ("read_file", {"path": 3}, "error: path must be text"),
        ("submit", {"now": "yes"}, "error: submit needs no arguments"),
        (
            "patch_file",
            {"path": "src/calc.py", "old": "-", "new": "+"},
            "error: unknown tool patch_file; tools: list_files, read_file, edit_file, run_tests, submit",
        ),
    ],
)
async def test_a_call_that_cannot_be_done_is_an_answer_and_changes_nothing(session, tool, arguments, text):
    observation = await session.call(tool, arguments)
    assert observation.text == text
    assert observation.is_error
    assert session.artifact().files == TASK.files


async def test_only_the_first_occurrence_is_replaced(session):
    await session.call("edit_file", {"path": "src/calc.py", "old": "a", "new": "z"})
    assert await answer(session, "read_file", path="src/calc.py") == "def zdd(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("import os; os._exit(0)", "failed: the tests ended early"),
        ("print('result: passed')", "failed: add(2, 3) is None, want 5"),
        ("return c", "failed: NameError: name 'c' is not defined"),
        ("retur", "failed: NameError: name 'retur' is not defined"),
        ("(", "failed: SyntaxError"),
    ],
)
async def test_broken_code_fails_its_tests_in_the_terms_of_python(session, body, text):
    await session.call(
        "edit_file",
        {
            "path": "src/calc.py",
            "old": "return a - b",
            "new": f"{body} if b else 2" if body == "return c" else f"if not b: return 2\n    {body}",
        },
    )
    assert (await answer(session, "run_tests")).startswith(text)


async def test_what_a_program_writes_stays_in_its_own_jail(session):
    await session.call("edit_file", {"path": "src/calc.py", "old": "return", "new": "open('left', 'w')\n    return"})
    await session.call("run_tests", {})
    assert await answer(session, "list_files") == "src/calc.py\ntests/test_calc.py"


def test_a_test_run_without_end_is_a_failure_not_an_outage():
    assert read_result(SandboxResult("", 124, is_timeout=True)).text == "failed: the tests take too long"


def test_a_long_reason_is_cut():
    assert len(read_result(SandboxResult("result: failed: " + "x" * 9000, 0)).text) == 200
