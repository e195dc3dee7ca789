"""An edit by the smallest fragment does what the whole edit does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.tasks.bug_repair.generator import generate
from online_agent.seed_policy.fragments import smallest_edit


@pytest.mark.parametrize(
    ("before", "after", "edit"),
    [
        ("def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n", ("-", "+")),
        ("    return a % 2 != 0\n", "    return a % 2 == 0\n", ("!=", "==")),
        ("def add(a, b):\n    return a + a\n", "def add(a, b):\n    return a + b\n", ("+ a", "+ b")),
        ("def add(a, b):\n    a + b\n", "def add(a, b):\n    return a + b\n", ("a ", "return a ")),
        ("return xs[1:]\n", "return xs[:1]\n", ("1:", ":1")),
        ("a\n", "b\n", ("a", "b")),
    ],
)
def test_the_fragment_is_widened_only_as_far_as_its_first_occurrence_is_the_right_place(before, after, edit):
    assert smallest_edit(before, after) == edit


@given(st.integers(0, 10**9))
def test_replacing_the_fragment_turns_a_bug_into_its_cure_and_back(number):
    task = generate("train", number)
    for before, after in ((task.buggy, task.fixed), (task.fixed, task.buggy)):
        old, new = smallest_edit(before, after)
        assert before.replace(old, new, 1) == after


@given(st.text("ab +\n", max_size=12), st.text("ab +\n", max_size=12))
def test_any_two_texts_have_an_edit(before, after):
    if before == after or not before:
        return
    old, new = smallest_edit(before, after)
    assert before.replace(old, new, 1) == after


def test_equal_texts_have_no_edit():
    with pytest.raises(ValueError, match="equal"):
        smallest_edit("a", "a")
