"""Which words of a text are paths that moved, and which are not."""

from __future__ import annotations

import pytest

from envs.changes.base import Call
from envs.changes.paths import MovePath
from envs.types import Observation

FILES = {"src/a.py": "import src.a  # src/a.py", "src/a.py.bak": "", "src2/b.py": "", "c.txt": ""}
MOVE = MovePath.model_validate({"from": "src", "to": "lib/python"})
CALL = Call("run", {}, "train-0", 0, lambda: FILES)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("failed: src/a.py: add", "failed: lib/python/a.py: add"),
        ("src/a.py\nsrc/a.py.bak\nsrc2/b.py", "lib/python/a.py\nlib/python/a.py.bak\nsrc2/b.py"),
        ('File "src/a.py", line 3', 'File "lib/python/a.py", line 3'),
        ("see my-src/a.py and src/unknown.py", "see my-src/a.py and src/unknown.py"),
        ("src/a.pyc", "src/a.pyc"),
        (FILES["src/a.py"], FILES["src/a.py"]),
    ],
)
def test_paths_of_known_files_are_translated_in_answers(text: str, shown: str) -> None:
    assert MOVE.answer(CALL, Observation(text)).text == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fix src/a.py: add(1) is 2", "fix lib/python/a.py: add(1) is 2"),
        ("look into src, then stop", "look into lib/python, then stop"),
        ("src2/b.py and resrc/x stay", "src2/b.py and resrc/x stay"),
    ],
)
def test_documented_move_rewrites_prompts(text: str, shown: str) -> None:
    assert MOVE.prompt(text) == shown


def test_single_file_can_move() -> None:
    move = MovePath.model_validate({"from": "c.txt", "to": "docs/c.md"})
    assert dict(move.layout({"c.txt": "1", "c.txt2": "2"})) == {"docs/c.md": "1", "c.txt2": "2"}
