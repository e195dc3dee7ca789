"""``docs/papers.md`` names only functions, keys, recipes and tests that exist, and every recipe there is."""

from __future__ import annotations

import dataclasses
import importlib
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

import pytest

from online_agent.config.training import LearnerSettings
from online_agent.recipes import RECIPES, Recipe
from online_agent.recipes import parts as recipe_parts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", PAGE)
SOURCE_FOLDERS = (ROOT / "online_agent" / "algo", ROOT / "online_agent")
TESTS = ROOT / "tests"
PARTS = {
    "advantage": recipe_parts.Advantage,
    "reference": recipe_parts.Reference,
    "trust_region": recipe_parts.TrustRegion,
}


def references(pattern: str) -> list[tuple[str, list[str]]]:
    """(file, names) of every `file.py: name, name` in the page."""
    found = [re.fullmatch(rf"({pattern})(?:: (.+))?", text) for text in CODE]
    return [(match[1], match[2].split(", ") if match[2] else []) for match in found if match]


FUNCTIONS = references(r"(?!.*test_)[\w/]+\.py")
TEST_FILES = references(r"(?:[\w/]+/)?test_\w+\.py")
BARE_TESTS = [text for text in CODE if re.fullmatch(r"test_\w+\*?", text)]
SETTINGS = sorted({text.removeprefix("learner.") for text in CODE if re.fullmatch(r"learner\.\w+", text)})
KEYS = sorted({text for text in CODE if re.fullmatch(rf"(?:{'|'.join(PARTS)}|critic)\.\w+", text)})


def module_of(file: str) -> str:
    path = next((folder / file for folder in SOURCE_FOLDERS if (folder / file).exists()), None)
    if file.startswith("algo/"):
        path = ROOT / "online_agent" / file
    assert path is not None, f"{file} does not exist"
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def names_in(file: str) -> list[str]:
    path = TESTS / file if "/" in file else TESTS / "unit" / "algo" / file
    return re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)


def keys_of(part: str) -> set[str]:
    if part == "critic":
        return {field.name for field in dataclasses.fields(recipe_parts.Critic)}
    kinds = get_args(get_args(PARTS[part])[0])
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


def test_the_page_is_read_at_all():
    assert len(FUNCTIONS) > 40
    assert len(TEST_FILES) > 40
    assert len(SETTINGS) > 4
    assert len(KEYS) > 20


@pytest.mark.parametrize(("file", "names"), FUNCTIONS, ids=[f"{file}:{names}" for file, names in FUNCTIONS])
def test_every_function_named_exists(file, names):
    module = importlib.import_module(module_of(file))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_named_exists(setting):
    assert setting in LearnerSettings.model_fields


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_recipe_named_exists(key):
    part, name = key.split(".")
    assert name in keys_of(part)


def test_every_number_of_every_part_is_on_the_page():
    named = {key for key in KEYS if not key.endswith(".kind")}
    all_keys = {f"{part}.{name}" for part in (*PARTS, "critic") for name in keys_of(part)}
    assert all_keys - named - {f"{part}.kind" for part in PARTS} - {"advantage.critic"} == set()


def test_the_table_of_recipes_is_that_of_the_code():
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(RECIPES)
    assert "replays_routing" in {field.name for field in dataclasses.fields(Recipe)}


@pytest.mark.parametrize(("file", "patterns"), TEST_FILES, ids=[f"{file}:{names}" for file, names in TEST_FILES])
def test_every_test_named_exists(file, patterns):
    names = names_in(file)
    assert names
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []


def test_every_test_named_without_its_file_exists():
    known = [name for file, _ in TEST_FILES for name in names_in(file)]
    assert BARE_TESTS
    assert [pattern for pattern in BARE_TESTS if not any(fnmatch(name, pattern) for name in known)] == []
