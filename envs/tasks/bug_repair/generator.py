"""Tasks from numbers: the same id gives the same files on every machine.

The split is a property of the content: a hash of the buggy source decides to which split it belongs, and the
generator draws again until the source belongs to the split asked for. So no held-out source is ever a training
source, whatever the numbers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from envs.tasks.bug_repair.bugs import Bug, BugKind, Family
from envs.tasks.bug_repair.families import lists, numbers, text
from envs.types import Split

FAMILIES: tuple[Family, ...] = numbers.FAMILIES + lists.FAMILIES + text.FAMILIES

NUMBER_NAMES = ("a", "b", "x", "y", "n", "m", "p", "q")
LIST_NAMES = ("items", "values", "data", "nums")
ACCUMULATOR_NAMES = ("acc", "out", "result", "score")
ELEMENT_NAMES = ("v", "e", "item", "value")
STRING_NAMES = ("text", "word", "s", "line")
MODULE_NAMES = (
    *("calc", "core", "tools", "maths", "base", "ops", "logic", "parts", "shapes", "stats"),
    *("numbers", "helpers", "simple", "basic", "common", "lib", "main", "api", "util", "work"),
)
WORDS = (
    *("apple", "bread", "cloud", "drum", "eagle", "fig", "grape", "hat"),
    *("ink", "jam", "kite", "lemon", "moon", "nest", "owl", "pear"),
)
LETTERS = "abcdehklmnoprst"
PEOPLE = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Fay", "Gus", "Hal")

NUM_VISIBLE = 3
NUM_HIDDEN = 7
HELDOUT_SHARE = 4
"""One source in this many belongs to the held-out split."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the function under test and the value a right function returns."""

    arguments: tuple[Any, ...]
    want: Any


@dataclass(frozen=True, slots=True)
class BugTask:
    """A buggy source with its cure and its cases.

    ``symptom`` is the first visible case that fails, with the value got. ``wrong_edits`` are whole sources that
    another bug at the same place would give: what a hasty worker could take for the cure.
    """

    family: str
    kind: BugKind
    path: str
    function: str
    buggy: str
    fixed: str
    wrong_edits: tuple[str, ...]
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]
    symptom: tuple[Case, Any]

    @property
    def test_path(self) -> str:
        return "tests/test_" + self.path.rpartition("/")[2]

    @property
    def prompt(self) -> str:
        case, got = self.symptom
        return f"fix {self.path}: {call_text(self.function, case.arguments)} is {got!r}, want {case.want!r}"


def call_text(function: str, arguments: tuple[Any, ...]) -> str:
    return f"{function}({', '.join(map(repr, arguments))})"


def split_of(source: str) -> Split:
    """The split a source belongs to, by its content alone."""
    return "heldout" if hashlib.sha256(source.encode()).digest()[0] % HELDOUT_SHARE == 0 else "train"


def generate(split: Split, number: int) -> BugTask:
    """Task ``number`` of ``split``: its source belongs to the split, and its bug shows in visible and hidden cases."""
    rng = random.Random(f"bug_repair/{split}/{number}")
    while True:
        task = _draw(rng, split)
        if task is not None:
            return task


def test_file(task: BugTask) -> str:
    """The visible tests as a Python file that any test runner can run."""
    module = task.path.removesuffix(".py").replace("/", ".")
    lines = [f"from {module} import {task.function}", "", "", "def check(call, got, want):"]
    lines += ['    assert got == want, f"{call} is {got!r}, want {want!r}"', "", "", f"def test_{task.function}():"]
    for case in task.visible:
        call = call_text(task.function, case.arguments)
        lines.append(f'    check("{call}", {call}, {case.want!r})')
    return "\n".join(lines) + "\n"


def _draw(rng: random.Random, split: Split) -> BugTask | None:
    family = rng.choice(FAMILIES)
    bug = rng.choice(family.bugs)
    names = _draw_names(rng, family)
    fixed = fill(family.source, names)
    buggy = apply_bug(fixed, bug, names)
    if split_of(buggy) != split:
        return None
    path = f"src/{rng.choice(MODULE_NAMES)}.py"
    arguments = _draw_arguments(rng, family.arguments)
    wants = outcomes(fixed, names["f"], arguments)
    gots = outcomes(buggy, names["f"], arguments)
    if wants is None or gots is None:
        return None
    cases = [Case(args, want) for args, want in zip(arguments, wants, strict=True)]
    shows = [not same_value(got, want) for got, want in zip(gots, wants, strict=True)]
    if not any(shows[:NUM_VISIBLE]) or not any(shows[NUM_VISIBLE:]):
        return None
    first = shows.index(True)
    others = tuple(
        apply_bug(fixed, other, names) for other in family.bugs if _shares_place(other, bug) and other != bug
    )
    return BugTask(
        family=family.names[0],
        kind=bug.kind,
        path=path,
        function=names["f"],
        buggy=buggy,
        fixed=fixed,
        wrong_edits=others,
        visible=tuple(cases[:NUM_VISIBLE]),
        hidden=tuple(cases[NUM_VISIBLE:]),
        symptom=(cases[first], gots[first]),
    )


def same_value(got: Any, want: Any) -> bool:
    """Equal in value and in type all the way down: 1 is not True, [1] is not (1,)."""
    return repr(got) == repr(want)


def fill(template: str, names: dict[str, str]) -> str:
    return template.format_map(names)


def apply_bug(fixed: str, bug: Bug, names: dict[str, str]) -> str:
    return fixed.replace(fill(bug.right, names), fill(bug.wrong, names), 1)


def _shares_place(one: Bug, other: Bug) -> bool:
    """Both bugs alter the same stretch of the source, so one can be taken for the cure of the other."""
    return one.right in other.right or other.right in one.right


def _draw_names(rng: random.Random, family: Family) -> dict[str, str]:
    a, b, c = rng.sample(NUMBER_NAMES, 3)
    return {
        "f": rng.choice(family.names),
        "g": family.helper,
        "a": a,
        "b": b,
        "c": c,
        "xs": rng.choice(LIST_NAMES),
        "acc": rng.choice(ACCUMULATOR_NAMES),
        "v": rng.choice(ELEMENT_NAMES),
        "s": rng.choice(STRING_NAMES),
    }


def _draw_arguments(rng: random.Random, kinds: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """As many different argument tuples as there are cases (the domains are far larger)."""
    drawn: list[tuple[Any, ...]] = []
    for _ in range(20 * (NUM_VISIBLE + NUM_HIDDEN)):
        arguments = tuple(draw_argument(rng, kind) for kind in kinds)
        if arguments not in drawn:
            drawn.append(arguments)
        if len(drawn) == NUM_VISIBLE + NUM_HIDDEN:
            break
    return drawn


_DRAW: dict[str, Callable[[random.Random], Any]] = {
    "number": lambda rng: rng.randint(-6, 9),
    "positive": lambda rng: rng.randint(1, 9),
    "digit": lambda rng: rng.randint(0, 9),
    "index": lambda rng: rng.randint(1, 3),
    "large": lambda rng: rng.randint(10, 99),
    "numbers": lambda rng: [rng.randint(-5, 9) for _ in range(rng.randint(3, 4))],
    "digits": lambda rng: [rng.randint(1, 4) for _ in range(rng.randint(2, 4))],
    "word": lambda rng: rng.choice(WORDS),
    "maybe_word": lambda rng: rng.choice(("", *WORDS[:9])),
    "name": lambda rng: rng.choice(PEOPLE) if rng.random() < 0.5 else rng.choice(WORDS).title(),
    "letter": lambda rng: rng.choice(LETTERS),
}


def draw_argument(rng: random.Random, kind: str) -> Any:
    return _DRAW[kind](rng)


def outcomes(source: str, function: str, arguments: list[tuple[Any, ...]]) -> list[Any] | None:
    """What our own generated source returns for each argument tuple; None where a call raises."""
    namespace: dict[str, Any] = {}
    code: CodeType = compile(source, "<generated>", "exec")
    exec(code, namespace)
    try:
        return [namespace[function](*args) for args in arguments]
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError, NameError):
        return None
