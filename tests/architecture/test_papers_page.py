"""``docs/papers.md`` names only functions, settings and tests that exist."""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from online_agent.config.settings import LearnerSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
CODE = re.findall(r"`([^`]+)`", PAGE)
SOURCE_FOLDERS = (ROOT / "online_agent" / "algo", ROOT / "online_agent")


def references(prefix: str, suffix: str = ".py") -> list[tuple[str, list[str]]]:
    """(file, names) of every `file.py: name, name` in the page."""
    found = [re.fullmatch(rf"({prefix}[\w/]*{re.escape(suffix)})(?:: (.+))?", text) for text in CODE]
    return [(match[1], match[2].split(", ") if match[2] else []) for match in found if match]


FUNCTIONS = [each for each in references("") if not each[0].startswith("test_")]
TESTS = references("test_")
SETTINGS = [text.removeprefix("learner.") for text in CODE if text.startswith("learner.")]


BARE_TESTS = [text for text in CODE if re.fullmatch(r"test_\w+\*?", text)]
ALGO_TESTS = [
    name
    for path in (ROOT / "tests" / "unit" / "algo").glob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
]


def module_of(file: str) -> str:
    path = next((folder / file for folder in SOURCE_FOLDERS if (folder / file).exists()), None)
    assert path is not None, f"{file} does not exist"
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_the_page_is_read_at_all():
    assert len(FUNCTIONS) > 20
    assert len(TESTS) > 20


@pytest.mark.parametrize(("file", "names"), FUNCTIONS, ids=[file for file, _ in FUNCTIONS])
def test_every_function_named_exists(file, names):
    module = importlib.import_module(module_of(file))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_named_exists(setting):
    assert setting in LearnerSettings.model_fields


@pytest.mark.parametrize(("file", "patterns"), TESTS, ids=[f"{file}:{names}" for file, names in TESTS])
def test_every_test_named_exists(file, patterns):
    source = (ROOT / "tests" / "unit" / "algo" / file).read_text()
    names = re.findall(r"^def (test_\w+)", source, re.MULTILINE)
    assert names
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []


def test_every_test_named_without_its_file_exists():
    assert BARE_TESTS
    assert [pattern for pattern in BARE_TESTS if not any(fnmatch(name, pattern) for name in ALGO_TESTS)] == []
