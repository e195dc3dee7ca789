"""Bug-repair tasks are drawn from numbers, show their bug, and never cross the splits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.bug_repair.bugs import BugKind
from envs.tasks.bug_repair.generator import (
    FAMILIES,
    fill,
    generate,
    outcomes,
    same_value,
    split_of,
    test_file,
)

test_file.__test__ = False  # type: ignore[attr-defined]  # a function of the product, not a test
SPLITS = st.sampled_from(("train", "heldout"))
NUMBERS = st.integers(0, 10**12)
NAMES = {"f": "f", "g": "g", "a": "a", "b": "b", "c": "c", "xs": "xs", "acc": "acc", "v": "v", "s": "s"}


@given(SPLITS, NUMBERS)
def test_the_same_number_gives_the_same_task(split, number):
    assert generate(split, number) == generate(split, number)


@given(SPLITS, NUMBERS)
def test_every_bug_shows_in_the_visible_and_in_the_hidden_cases_and_the_cure_passes_all(split, number):
    task = generate(split, number)
    for cases in (task.visible, task.hidden):
        arguments = [case.arguments for case in cases]
        buggy, fixed = (outcomes(text, task.function, arguments) for text in (task.buggy, task.fixed))
        assert buggy is not None
        assert fixed is not None
        assert any(not same_value(got, case.want) for got, case in zip(buggy, cases, strict=True))
        assert all(same_value(got, case.want) for got, case in zip(fixed, cases, strict=True))


@given(SPLITS, NUMBERS)
def test_a_source_belongs_to_the_split_it_is_drawn_for(split, number):
    assert split_of(generate(split, number).buggy) == split


@given(SPLITS, NUMBERS)
def test_the_prompt_quotes_the_first_visible_case_that_fails(split, number):
    task = generate(split, number)
    case, got = task.symptom
    assert case in task.visible
    assert outcomes(task.buggy, task.function, [case.arguments]) == [got]
    assert task.prompt.startswith(f"fix {task.path}: {task.function}(")
    assert task.prompt.endswith(f" is {got!r}, want {case.want!r}")


def test_five_hundred_tasks_of_either_split_share_no_source():
    sources = {split: {generate(split, number).buggy for number in range(500)} for split in ("train", "heldout")}
    assert sources["train"].isdisjoint(sources["heldout"])
    assert len(sources["train"]) > 300


def test_each_of_the_twelve_kinds_of_bug_is_drawn():
    assert {generate("train", number).kind for number in range(500)} == set(BugKind)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.names[0])
def test_each_bug_alters_exactly_one_place_of_its_family(family):
    source = fill(family.source, NAMES)
    for bug in family.bugs:
        assert source.count(fill(bug.right, NAMES)) == 1
        assert bug.right != bug.wrong


@settings(max_examples=3, deadline=None)
@given(NUMBERS)
def test_the_test_file_fails_on_the_bug_and_passes_on_the_cure_under_an_ordinary_test_runner(tmp_path_factory, number):
    task = generate("heldout", number)
    for source, code in ((task.buggy, 1), (task.fixed, 0)):
        root: Path = tmp_path_factory.mktemp("repository")
        for path, text in ((task.path, source), (task.test_path, test_file(task))):
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(text)
        module = task.test_path.removesuffix(".py").replace("/", ".")
        program = f"import {module} as tests; tests.test_{task.function}()"
        done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, timeout=30)
        assert done.returncode == code, done.stderr
