"""Repairs given with a request: prompt and files as they come, and the calls that grade them.

The tests are calls of one function of one file with the value each must return, written as a Python session would show
them: ``{"path": "src/calc.py", "cases": [{"call": "add(1, 2)", "want": "3"}]}``. They are read as literals, never run
here, and never shown to the agent: what it may see and run are test files among ``files``.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from envs.errors import BadTask, quoted
from envs.given import GivenPart, GivenTask, parse_given
from envs.tasks.bug_repair.recognition import is_heldout
from envs.types import Split, Task

MAX_CASES = 100
MAX_CALL_CHARS = 4096
MAX_WANTS_BYTES = 16_384
"""Of all values together: what a jail writes of them must stay well below the output that is kept of a job."""
MAX_DEPTH = 4
"""Of lists in lists, as the program in the jail reads returned values (jail_calls.py)."""
RESERVED = frozenset({"verify.py", "calls.txt", "run_tests.py"})
"""Names that the jail's own programs take in its working directory."""
_PLAIN = (int, float, str, bool, type(None))

Literal = Annotated[str, Field(min_length=1, max_length=MAX_CALL_CHARS)]


class GivenCase(GivenPart):
    """``call``: of the function under test, with literals by position. ``want``: what it returns, as a literal."""

    call: Literal
    want: Literal


class GivenTests(GivenPart):
    """Calls of one function of the file at ``path``."""

    path: str
    cases: Annotated[list[GivenCase], Field(min_length=1, max_length=MAX_CASES)]


class GivenRepair(GivenTask):
    """A repair of the sender's own: what the agent is told, what it starts from, and what grades it."""

    tests: GivenTests


def parse_repair(env: str, given: Mapping[str, Any]) -> Task:
    """The task as the verifier of bug repair grades it. Raises BadTask naming the field."""
    repair = parse_given(GivenRepair, given)
    _check_paths(repair)
    function, calls, wants = "", [], []
    for number, case in enumerate(repair.tests.cases):
        name, arguments = parse_call(case.call, f"tests.cases.{number}.call")
        if function not in ("", name):
            raise BadTask(f"calls {name}, the ones before call {function}", field=f"tests.cases.{number}.call")
        function = name
        calls.append(arguments)
        wants.append(repr(parse_value(case.want, f"tests.cases.{number}.want")))
    size_bytes = sum(len(want.encode()) for want in wants)
    if size_bytes > MAX_WANTS_BYTES:
        raise BadTask(f"the wanted values have {size_bytes} bytes, the limit is {MAX_WANTS_BYTES}", field="tests.cases")
    path = repair.tests.path
    data = {"path": path, "calls": repr((path, function, calls)), "wants": wants}
    split: Split = "heldout" if any(map(is_heldout, repair.files.values())) else "train"
    return Task(env, repair.id, split, repair.prompt, repair.files, data)


def parse_call(text: str, field: str) -> tuple[str, tuple[Any, ...]]:
    """Name and arguments of ``name(literal, ...)``. Raises BadTask."""
    node = _parse(text, field)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise BadTask(f"{quoted(text)} is no call such as add(1, 2) with arguments by position", field=field)
    return node.func.id, tuple(_plain(argument, text, field) for argument in node.args)


def parse_value(text: str, field: str) -> Any:
    """The value of a Python literal. Raises BadTask."""
    return _plain(_parse(text, field), text, field)


def _parse(text: str, field: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadTask(f"{quoted(text)} is not Python: {error}", field=field) from error


def _plain(node: ast.expr, text: str, field: str) -> Any:
    try:
        value = ast.literal_eval(node)
        repr(value)  # a whole number may be too long to be written
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise BadTask(f"{quoted(text)} holds what is no literal, or too long a number", field=field) from error
    if not is_plain(value):
        wanted = f"numbers, texts, True, False, None, and lists and tuples of them up to {MAX_DEPTH} deep"
        raise BadTask(f"{quoted(text)} holds more than {wanted}", field=field)
    return value


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether the jail takes and returns such a value; a number that is not finite has no literal to be written as."""
    if type(value) in (list, tuple):
        return depth < MAX_DEPTH and all(is_plain(item, depth + 1) for item in value)
    return type(value) in _PLAIN and not (type(value) is float and not math.isfinite(value))


def _check_paths(repair: GivenRepair) -> None:
    for path in repair.files:
        if path.partition("/")[0] in RESERVED:
            raise BadTask(f"the name {quoted(path)} is taken by the programs that run the tests", field="files")
    path = repair.tests.path
    if path not in repair.files:
        raise BadTask(f"{quoted(path)} is none of the files", field="tests.path")
    if not path.endswith(".py"):
        raise BadTask(f"{quoted(path)} is no Python file", field="tests.path")
