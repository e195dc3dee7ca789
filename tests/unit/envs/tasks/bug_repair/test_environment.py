"""What a repair earns, in the real sandbox: right values only, however the agent goes about it (case C30)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.sandbox.nsjail import NsjailSandbox
from envs.tasks.bug_repair.environment import BugRepair, read_outcomes
from envs.tasks.bug_repair.generator import generate
from envs.types import Artifact, SandboxResult

CURED = 5


@pytest.fixture
async def environment():
    sandbox = NsjailSandbox(max_jobs=1)
    yield BugRepair(sandbox)
    await sandbox.close()


def cured(environment):
    task = environment.task(f"heldout-{CURED}")
    return task, {**task.files, task.data["path"]: generate("heldout", CURED).fixed}


def with_source(task, source):
    return Artifact({**task.files, task.data["path"]: source}, is_submitted=True)


async def test_the_cure_earns_one_and_the_bug_nothing(environment):
    task, files = cured(environment)
    verdict = await environment.verify(task, Artifact(files))
    assert (verdict.reward, verdict.is_success) == (1.0, True)
    assert verdict.evidence["num_right"] == verdict.evidence["num_cases"] == 10
    assert (await environment.verify(task, Artifact(task.files))).reward == 0.0


async def test_weakened_tests_and_planted_files_earn_nothing_and_are_told(environment):
    task = environment.task("heldout-5")
    (test_path,) = [path for path in task.files if path.startswith("tests/")]
    planted = {
        test_path: "def test_add():\n    assert True\n",
        "conftest.py": "import pytest\n",
        "sitecustomize.py": "",
    }
    harmless = task.files[task.data["path"]] + "# looked at\n"
    verdict = await environment.verify(task, Artifact({**task.files, **planted, task.data["path"]: harmless}))
    assert verdict.reward == 0.0
    assert verdict.evidence["tests_modified"] is True
    assert verdict.evidence["added_files"] == ["conftest.py", "sitecustomize.py"]


async def test_a_cure_that_also_touches_a_test_still_earns_one(environment):
    task, files = cured(environment)
    (test_path,) = [path for path in task.files if path.startswith("tests/")]
    verdict = await environment.verify(task, Artifact({**files, test_path: "# nothing left\n"}))
    assert verdict.reward == 1.0
    assert verdict.evidence["tests_modified"] is True


@pytest.mark.parametrize(
    "trick",
    [
        "import os\nos._exit(0)\n",
        "import sys\nsys.exit(0)\n",
        "print('passed')\n",
        "import os\nfor fd in range(3, 20):\n    try:\n        os.write(fd, b'[]')\n"
        "    except OSError:\n        pass\n",
        "class Yes:\n    def __eq__(self, other):\n        return True\n    def __repr__(self):\n        return '5'\n"
        "def {f}(*args):\n    return Yes()\n",
        "import builtins\nbuiltins.repr = lambda value: 'True'\n",
        "import sys\ndef {f}(*args):\n    frame = sys._getframe(1)\n    while frame:\n"
        "        if 'want' in frame.f_locals:\n            return frame.f_locals['want']\n"
        "        frame = frame.f_back\n",
        "def {f}(*args):\n    raise SystemExit(0)\n",
        "this is not Python\n",
        "while True:\n    pass\n",
    ],
    ids=["exit", "sys.exit", "print", "descriptors", "equal to all", "repr", "stack", "raise", "syntax", "loop"],
)
async def test_code_that_does_anything_but_return_the_right_values_earns_nothing(environment, trick):
    task = environment.task("heldout-5")
    function = generate("heldout", 5).function
    source = task.files[task.data["path"]] + "\n\n" + trick.replace("{f}", function)
    verdict = await environment.verify(task, with_source(task, source))
    assert (verdict.reward, verdict.is_success) == (0.0, False)


async def test_a_removed_source_earns_nothing_and_says_so(environment):
    task = environment.task("heldout-5")
    files = {path: text for path, text in task.files.items() if path != task.data["path"]}
    verdict = await environment.verify(task, Artifact(files))
    assert verdict.reward == 0.0
    assert "is gone" in verdict.evidence["reason"]


async def test_hard_coding_the_visible_cases_is_not_enough(environment):
    bug = generate("heldout", 5)
    task = environment.task("heldout-5")
    answers = [(case.arguments, case.want) for case in bug.visible]
    by_heart = f"""
_buggy = {bug.function}

def {bug.function}(*args):
    return next((want for known, want in {answers!r} if known == args), _buggy(*args))
"""
    verdict = await environment.verify(task, with_source(task, bug.buggy + by_heart))
    assert verdict.reward == 0.0
    assert verdict.evidence["num_right"] >= len(answers)


@pytest.mark.parametrize("task_id", ["train", "train--1", "train-01", "test-3", "heldout-1.5", "", "train-1 "])
def test_an_id_that_does_not_exist_is_a_key_error(task_id):
    with pytest.raises(KeyError):
        BugRepair(sandbox=None).task(task_id)  # type: ignore[arg-type]


def test_tasks_are_numbered_from_where_one_asks():
    environment = BugRepair(sandbox=None)  # type: ignore[arg-type]
    assert [task.id for task in environment.tasks("heldout", 7, 3)] == ["heldout-7", "heldout-8", "heldout-9"]
    assert environment.tasks("heldout", 8, 1)[0] == environment.task("heldout-8")


@pytest.mark.parametrize("output", ["", "[", "['1']", "['1', 2]", "{'1', '2'}", "('1', '2')", "[" * 3000])
def test_an_output_that_is_no_list_of_the_right_length_counts_as_silence(output):
    assert read_outcomes(SandboxResult(output, 0), 2) == ["", ""]


def test_outcomes_of_a_job_that_was_cut_short_do_not_count():
    whole = SandboxResult("['1', '2']", 0)
    assert read_outcomes(whole, 2) == ["1", "2"]
    assert read_outcomes(replace(whole, is_timeout=True), 2) == ["", ""]
    assert read_outcomes(replace(whole, is_output_truncated=True), 2) == ["", ""]
