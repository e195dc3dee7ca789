"""The scripted worker: right without habits, and wrong in exactly the ways its habits say."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from envs.tasks.bug_repair.generator import generate
from online_agent.rendering import parse_tool_calls
from online_agent.seed_policy.demonstrator import demonstrate
from online_agent.seed_policy.habits import Habits

FLAWLESS = replace(Habits(**{field.name: 0.0 for field in fields(Habits)}), own_names=1.0)
NUM_TASKS = 60


def demos(**habits):
    return [
        demonstrate(generate("train", number), random.Random(number), replace(FLAWLESS, **habits))
        for number in range(NUM_TASKS)
    ]


def calls(demo):
    return [parse_tool_calls(written)[0].name for written, *_ in demo.turns]


def test_without_habits_every_task_is_read_repaired_tested_and_submitted():
    for demo in demos():
        assert calls(demo) == ["read_file", "edit_file", "run_tests", "submit"]
        assert demo.turns[2][1] == "passed"
        assert demo.is_repaired


def test_every_turn_is_one_readable_call_of_a_tool_that_exists_or_of_one_the_answer_says_is_unknown():
    for demo in demos(own_names=0.0, stale_edit_name=0.5, stale_name=0.4, wrong_first_edit=0.5):
        for written, answer, _ in demo.turns:
            (call,) = parse_tool_calls(written)
            assert call.error is None
            shown = {tool.name: tool.argument_names for tool in demo.tools}
            if call.name in shown and not answer.startswith("error: unknown tool"):
                assert tuple(call.arguments) == shown[call.name]


@pytest.mark.parametrize(
    ("habits", "names"),
    [
        ({"quits_after_reading_long": 1.0, "quits_after_reading_short": 1.0}, ["read_file", "submit"]),
        ({"submits_untested": 1.0}, ["read_file", "edit_file", "submit"]),
        ({"lists_files": 1.0}, ["list_files", "read_file", "edit_file", "run_tests", "submit"]),
        ({"stale_path": 1.0}, ["read_file", "read_file", "edit_file", "run_tests", "submit"]),
        ({"stale_path": 1.0, "quits_after_error": 1.0}, ["read_file", "submit"]),
        ({"stale_edit_name": 1.0, "quits_after_stale_edit": 1.0}, ["read_file", "edit_file", "submit"]),
        ({"misses_text": 1.0}, ["read_file", "edit_file", "edit_file", "run_tests", "submit"]),
        (
            {"misses_text": 1.0, "misses_again": 1.0},
            ["read_file", "edit_file", "edit_file", "edit_file", "run_tests", "submit"],
        ),
    ],
)
def test_a_habit_shows_in_the_calls(habits, names):
    for demo in demos(**habits):
        assert calls(demo) == names


def test_a_tool_renamed_in_silence_is_called_by_its_new_name_after_the_error_and_ever_after():
    for demo in demos(stale_edit_name=1.0, wrong_first_edit=1.0):
        assert demo.is_repaired or demo.turns[-2][1] == "passed"
        assert "edit_file" in {tool.name for tool in demo.tools}
        names = [name for name in calls(demo) if name not in ("read_file", "run_tests", "submit")]
        assert names[0] == "edit_file"
        assert names[1] != "edit_file"
        assert set(names[1:]) == {names[1]}


def test_a_wrong_edit_that_fails_its_test_is_repaired_unless_the_worker_gives_up():
    for demo in demos(wrong_first_edit=1.0):
        assert demo.is_repaired or demo.turns[2][1] == "passed"
    given_up = demos(wrong_first_edit=1.0, quits_after_failed_test=1.0)
    failed = [demo for demo in given_up if demo.turns[2][1].startswith("failed: ")]
    assert 0 < len(failed) < NUM_TASKS  # not every line has another known bug
    for demo in failed:
        assert calls(demo) == ["read_file", "edit_file", "run_tests", "submit"]
        assert not demo.is_repaired


def test_a_text_misremembered_is_not_in_the_file_and_the_repair_comes_after():
    for demo in demos(misses_text=1.0):
        assert demo.turns[1].answer == "error: text not found"
        assert [turn.is_taught for turn in demo.turns] == [index != 1 for index in range(len(demo.turns))]
        assert demo.is_repaired


def test_the_same_seed_gives_the_same_demonstration():
    habits = Habits()
    for number in range(NUM_TASKS):
        task = generate("train", number)
        assert demonstrate(task, random.Random(1), habits) == demonstrate(task, random.Random(1), habits)
