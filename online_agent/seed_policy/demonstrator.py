"""A scripted policy that repairs a task in a simulated world, with the habits of an imperfect worker."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from envs.observations import unknown_tool
from envs.tasks.bug_repair import tools
from envs.tasks.bug_repair.generator import (
    ACCUMULATOR_NAMES,
    ELEMENT_NAMES,
    LIST_NAMES,
    NUMBER_NAMES,
    BugTask,
    call_text,
    outcomes,
    same_value,
    test_file,
)
from envs.types import ToolSpec
from envs.workspace import Workspace
from online_agent.seed_policy.fragments import smallest_edit
from online_agent.seed_policy.habits import Habits
from online_agent.seed_policy.names import OWN_NAMES, draw_naming, rename_tool

LONG_FUNCTION_LINES = 4
_PARTS = re.compile(r"\w+|\s+|[^\w\s]+")
_CONFUSED: tuple[tuple[str, ...], ...] = (
    NUMBER_NAMES,
    LIST_NAMES,
    ACCUMULATOR_NAMES,
    ELEMENT_NAMES,
    tuple("0123456789"),
    ("+", "-", "*", "//", "%", "<", ">", "==", "!=", "+=", "-=", "*="),
    ("max", "min", "sum", "len", "upper", "lower", "count", "find", "title", "strip"),
    (*NUMBER_NAMES, *ELEMENT_NAMES, "return", "[", "]", "-", "+", ":"),
)
"""What is taken for what; the last pool stands in for anything else."""
_MAX_DRAWS = 20
OTHER_FOLDERS = ("lib", "app", "pkg", "code")


class Turn(NamedTuple):
    """What the worker wrote and what the tool answered. A slip is shown, so that recovering from it is learned, but
    not taught: it is no target of the loss."""

    written: str
    answer: str
    is_taught: bool = True


@dataclass
class Demonstration:
    """What the renderer needs: the prompt, then the turns."""

    user: str
    tools: tuple[ToolSpec, ...]
    turns: list[Turn] = field(default_factory=list)
    is_repaired: bool = False


def call_as_text(tool: str, arguments: Mapping[str, str]) -> str:
    body = json.dumps({"name": tool, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def demonstrate(task: BugTask, rng: random.Random, habits: Habits) -> Demonstration:
    worker = _Worker(task, rng, habits)
    worker.work()
    return worker.demo


class _Worker:
    """One demonstration in the making. Methods return False where the worker has given up."""

    def __init__(self, task: BugTask, rng: random.Random, habits: Habits) -> None:
        self.task, self.rng, self.habits = task, rng, habits
        shown = OWN_NAMES if self.chance(habits.own_names) else draw_naming(rng)
        self.naming = self.believed = shown
        self.path = self.believed_path = task.path
        self._bend_the_world()
        self.workspace = Workspace({self.path: task.buggy, task.test_path: test_file(task)})
        self.demo = Demonstration(task.prompt, shown.specs(tools.TOOLS))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def work(self) -> None:
        if not self.explore():
            return self.submit()
        is_long = self.task.buggy.count("\n") >= LONG_FUNCTION_LINES
        if self.chance(self.habits.quits_after_reading_long if is_long else self.habits.quits_after_reading_short):
            return self.submit()
        if not self.slip() or not self.try_wrong_edit():
            return self.submit()
        if not self.edit_towards(self.task.fixed):
            return self.submit()
        if not self.chance(self.habits.submits_untested):
            self.run_tests()
        self.submit()

    def explore(self) -> bool:
        if self.chance(self.habits.lists_files):
            self.call(tools.LIST_FILES)
        answer = self.call(tools.READ_FILE, path=self.believed_path)
        if answer.startswith("error: no file"):
            if self.chance(self.habits.quits_after_error):
                return False
            self.believed_path = self.path
            self.call(tools.READ_FILE, path=self.path)
        return True

    def slip(self) -> bool:
        """Now and then an edit that finds nothing: a text misremembered, or old and new the wrong way round."""
        old, new = smallest_edit(self.source, self.task.fixed)
        if self.chance(self.habits.misses_text):
            self.miss(old, new)
            if not self.has_quit and self.chance(self.habits.misses_again):
                self.miss(old, new)
        elif new not in self.source and self.chance(self.habits.swaps_old_and_new):
            self.edit(new, old)
            return not self.chance(self.habits.quits_after_error)
        return not self.has_quit

    def miss(self, old: str, new: str) -> None:
        start = len(self.demo.turns)
        self.edit(misremembered(old, self.source, self.rng), new)
        self.demo.turns[start:] = [turn._replace(is_taught=False) for turn in self.demo.turns[start:]]

    def try_wrong_edit(self) -> bool:
        wrong = [text for text in self.task.wrong_edits if text != self.source]
        if not wrong or not self.chance(self.habits.wrong_first_edit):
            return True
        if not self.edit_towards(self.rng.choice(wrong)):
            return False
        if self.chance(self.habits.submits_wrong_edit_untested):
            return False
        has_passed = self.run_tests() == tools.PASSED.text  # the visible tests do not tell every bug
        return not has_passed and not self.chance(self.habits.quits_after_failed_test)

    def edit_towards(self, text: str) -> bool:
        old, new = smallest_edit(self.source, text)
        self.edit(old, new)
        return not self.has_quit

    def edit(self, old: str, new: str) -> None:
        self.call(tools.EDIT_FILE, path=self.believed_path, old=old, new=new)

    def run_tests(self) -> str:
        return self.call(tools.RUN_TESTS)

    def submit(self) -> None:
        self.call(tools.SUBMIT)
        self.demo.is_repaired = self.source == self.task.fixed

    @property
    def source(self) -> str:
        return self.workspace.read(self.path)

    has_quit = False

    def call(self, tool: str, **arguments: str) -> str:
        """Make the call; where the name is out of date, learn the right one from the error and call again, or quit."""
        name = self.believed.tools[tool]
        shown = {self.believed.arguments[key]: value for key, value in arguments.items()}
        if name == self.naming.tools[tool]:
            answer = self._answer(tool, arguments)
            self.demo.turns.append(Turn(call_as_text(name, shown), answer))
            return answer
        self.demo.turns.append(Turn(call_as_text(name, shown), unknown_tool(name, self.naming.tools.values()).text))
        self.believed = self.naming
        if tool == tools.EDIT_FILE and self.chance(self.habits.quits_after_stale_edit):
            self.has_quit = True
            return ""
        return self.call(tool, **arguments)

    def _answer(self, tool: str, arguments: Mapping[str, str]) -> str:
        if tool == tools.RUN_TESTS:
            return first_failure(self.task, self.source)
        if tool == tools.SUBMIT:
            return tools.SUBMITTED.text
        return tools.answer_from_files(self.workspace, tool, arguments).text

    def _bend_the_world(self) -> None:
        """Some demonstrations meet a tool or a folder that is not called what the prompt says."""
        share = self.rng.random()
        edit, other = self.habits.stale_edit_name, self.habits.stale_name
        if share < edit:
            self.naming = rename_tool(self.naming, tools.EDIT_FILE, self.rng)
        elif share < edit + other:
            tool = self.rng.choice((tools.READ_FILE, tools.RUN_TESTS, tools.SUBMIT))
            self.naming = rename_tool(self.naming, tool, self.rng)
        if self.chance(self.habits.stale_path):
            self.path = self.rng.choice(OTHER_FOLDERS) + self.task.path[self.task.path.index("/") :]


def misremembered(text: str, source: str, rng: random.Random) -> str:
    """A text much like ``text`` that ``source`` does not hold: one of its words, numbers or signs is another."""
    parts = _PARTS.findall(text)
    for _ in range(_MAX_DRAWS):
        index = rng.randrange(len(parts))
        pool = next(pool for pool in _CONFUSED if parts[index] in pool or pool is _CONFUSED[-1])
        wrong = "".join([*parts[:index], rng.choice(pool), *parts[index + 1 :]])
        if wrong not in source:
            return wrong
    return text + rng.choice(_CONFUSED[-1])


def first_failure(task: BugTask, source: str) -> str:
    """What ``run_tests`` answers for ``source``, computed in this process: for sources of our own making only."""
    gots = outcomes(source, task.function, [case.arguments for case in task.visible])
    if gots is None:
        return tools.failed("an exception").text
    for case, got in zip(task.visible, gots, strict=True):
        if not same_value(got, case.want):
            return tools.failed(f"{call_text(task.function, case.arguments)} is {got!r}, want {case.want!r}").text
    return tools.PASSED.text
