"""Repairs given with a request: how their tests are read, what is refused, and what they earn in the real sandbox."""

from __future__ import annotations

from ast import literal_eval
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from envs.changes import ChangedEnvironment
from envs.errors import BadTask
from envs.sandbox.nsjail import NsjailSandbox
from envs.tasks.bug_repair.environment import BugRepair
from envs.tasks.bug_repair.generator import generate, split_of
from envs.tasks.bug_repair.given import MAX_CASES, MAX_WANTS_BYTES, RESERVED, parse_repair
from envs.tasks.bug_repair.recognition import is_heldout
from envs.types import Artifact, Change

BUGGY = "def pair(a, b):\n    return (a, a)\n"
FIXED = "def pair(a, b):\n    return (a, b)\n"
PATH = "src/pair.py"
CASES = [{"call": "pair(1, 2)", "want": "(1, 2)"}, {"call": "pair('a', [None])", "want": "('a', [None])"}]
TASK: dict[str, Any] = {
    "prompt": "fix src/pair.py: pair(1, 2) is (1, 1), want (1, 2)",
    "files": {PATH: BUGGY, "README": "pairs\n"},
    "tests": {"path": PATH, "cases": CASES},
}


@pytest.fixture
async def environment():
    sandbox = NsjailSandbox(max_jobs=1)
    yield BugRepair(sandbox)
    await sandbox.close()


def with_case(call: str = "pair(1, 2)", want: str = "(1, 2)") -> dict[str, Any]:
    return {**TASK, "tests": {"path": PATH, "cases": [{"call": call, "want": want}]}}


def refusal(task: dict[str, Any]) -> BadTask:
    with pytest.raises(BadTask) as refused:
        parse_repair("bug_repair", task)
    return refused.value


def test_the_tests_become_what_the_verifier_reads_and_the_agent_is_shown_none_of_them():
    task = parse_repair("bug_repair", TASK)
    assert (task.env, task.split, task.prompt, task.files) == ("bug_repair", "train", TASK["prompt"], TASK["files"])
    assert literal_eval(task.data["calls"]) == (PATH, "pair", [(1, 2), ("a", [None])])
    assert task.data["wants"] == ["(1, 2)", "('a', [None])"]


def test_the_schema_names_what_a_task_needs(environment):
    schema = environment.task_schema()
    assert schema["required"] == ["prompt", "files", "tests"]
    assert schema["$defs"]["GivenCase"]["required"] == ["call", "want"]


def test_other_tests_make_another_task():
    assert parse_repair("bug_repair", with_case()).id != parse_repair("bug_repair", TASK).id


@pytest.mark.parametrize(
    "call",
    [
        "pair",
        "pair(1, 2",
        "pair(a=1)",
        "pair(*[1])",
        "pair(x)",
        "pair(__import__('os'))",
        "pair(f'{1}')",
        "os.getcwd()",
        "pair(1)(2)",
        "pair(1); pair(2)",
        "pair({1: 2})",
        "pair({1})",
        "pair(b'a')",
        "pair(1j)",
        "pair(...)",
        "pair(1e999)",
        "pair([[[[[1]]]]])",
        "pair(" + "(" * 1000,
        "pair(" + "-" * 4000 + "1)",
        "pair(0x" + "f" * 4000 + ")",
    ],
)
def test_a_call_that_is_more_than_a_name_and_plain_literals_is_refused(call):
    error = refusal(with_case(call=call))
    assert error.field == "tests.cases.0.call"
    assert len(str(error)) < 400


@pytest.mark.parametrize("want", ["x", "1e999", "{1: 2}", "print(1)", "[[[[[1]]]]]", "1, 2, 3, 4 +"])
def test_a_wanted_value_that_no_call_could_return_is_refused(want):
    assert refusal(with_case(want=want)).field == "tests.cases.0.want"


@generated(st.text(max_size=30))
def test_whatever_stands_for_a_call_or_a_value_is_read_or_refused(text):
    for case in ({"call": text}, {"want": text}):
        with suppress(BadTask):
            assert parse_repair("bug_repair", with_case(**case)).data["wants"]


@pytest.mark.parametrize(
    ("tests", "field"),
    [
        (None, "tests"),
        ({"path": PATH}, "tests.cases"),
        ({"path": PATH, "cases": []}, "tests.cases"),
        ({"path": PATH, "cases": CASES[:1] * (MAX_CASES + 1)}, "tests.cases"),
        ({"path": PATH, "cases": ["assert True"]}, "tests.cases.0"),
        ({"path": PATH, "cases": [{"call": "pair(1, 2)"}]}, "tests.cases.0.want"),
        ({"path": PATH, "cases": [*CASES, {"call": "other(1)", "want": "1"}]}, "tests.cases.2.call"),
        ({"path": "src/none.py", "cases": CASES}, "tests.path"),
        ({"path": "README", "cases": CASES}, "tests.path"),
        ({"path": PATH, "cases": CASES, "timeout_s": 9}, "tests.timeout_s"),
    ],
)
def test_tests_that_could_grade_nothing_are_refused_by_the_name_of_their_field(tests, field):
    assert refusal({**TASK, "tests": tests}).field == field


def test_wanted_values_too_long_for_what_is_kept_of_a_jails_output_are_refused():
    long = repr("x" * 4000)
    cases = [{"call": f"pair({n}, 0)", "want": long} for n in range(MAX_WANTS_BYTES // 4000 + 1)]
    error = refusal({**TASK, "tests": {"path": PATH, "cases": cases}})
    assert (error.field, "the limit is 16384" in str(error)) == ("tests.cases", True)


@pytest.mark.parametrize("name", sorted(RESERVED))
@pytest.mark.parametrize("path", ["{}", "{}/inside.py"])
def test_names_of_the_programs_in_the_jail_are_taken(name, path):
    error = refusal({**TASK, "files": {PATH: BUGGY, path.format(name): ""}})
    assert (error.field, name in str(error)) == ("files", True)


@generated(st.integers(0, 10**9))
def test_every_held_out_source_is_known_wherever_it_lies_and_no_training_source_is(number):
    held, train = generate("heldout", number).buggy, generate("train", number).buggy
    assert is_heldout(held)
    assert is_heldout("\n" + held.replace("\n", "  \n"))
    assert not is_heldout(train)
    assert parse_repair("bug_repair", {**TASK, "files": {PATH: BUGGY, "lib/copy.py": held}}).split == "heldout"
    assert parse_repair("bug_repair", {**TASK, "files": {PATH: BUGGY, "lib/copy.py": train}}).split == "train"


def test_a_source_of_ones_own_is_trained_on_whatever_its_hash():
    own = [f"def pair(a, b):\n    return (a, a)  # {n}\n" for n in range(40)]
    assert {split_of(source) for source in own} == {"train", "heldout"}
    assert not any(map(is_heldout, own))


def test_a_documented_change_is_told_in_the_prompt_too(environment):
    moved = ChangedEnvironment(environment, [Change("c", "move_path", {"from": "src", "to": "lib"}, is_silent=False)])
    assert moved.parse_task(TASK).prompt.startswith("fix lib/pair.py: ")


async def test_the_right_source_earns_one_and_others_nothing(environment):
    task = environment.parse_task(TASK)

    async def earned(source: str) -> tuple[float, bool]:
        verdict = await environment.verify(task, Artifact({**task.files, PATH: source}, is_submitted=True))
        return verdict.reward, verdict.is_success

    assert await earned(FIXED) == (1.0, True)
    assert await earned(BUGGY) == (0.0, False)
    assert await earned("def pair(a, b):\n    return [a, b]\n") == (0.0, False)
    assert await earned("import os\nos._exit(0)\n") == (0.0, False)
    assert await earned("pair = 1\n") == (0.0, False)


async def test_the_agent_sees_runs_and_edits_the_given_files(environment):
    tests = "from src.pair import pair\n\n\ndef test_pair():\n    assert pair(1, 2) == (1, 2), 'pair'\n"
    task = environment.parse_task({**TASK, "files": {**TASK["files"], "tests/test_pair.py": tests}})
    session = await environment.start(task)
    assert (await session.call("list_files", {})).text == "README\nsrc/pair.py\ntests/test_pair.py"
    assert (await session.call("run_tests", {})).text == "failed: pair"
    await session.call("edit_file", {"path": PATH, "old": BUGGY, "new": FIXED})
    assert (await session.call("run_tests", {})).text == "passed"
    assert (await environment.verify(task, session.artifact())).reward == 1.0
