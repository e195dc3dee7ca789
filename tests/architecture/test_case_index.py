"""``docs/cases.md`` has a row for every case, each test named there exists, and a case's tests speak of it."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cases.md").read_text()
REQUIRED = [f"C{n:02}" for n in (*range(1, 35), 36)]
ROWS = {row[1]: row[2] for row in re.finditer(r"^\| (C\d\d) \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)}
NAMED = sorted(set(re.findall(r"`([\w/]+\.py): (test_\w*\*?)`", PAGE)))


def test_every_case_has_its_row_and_no_row_is_left_over():
    assert sorted(ROWS) == REQUIRED


@pytest.mark.parametrize("case", REQUIRED)
def test_the_tests_of_a_case_speak_of_it(case):
    files = re.findall(r"`([\w/]+\.py): ", ROWS[case])
    spoken = re.compile(rf"\b{case}\b|\btest_\w*{case.lower()}_")
    assert [file for file in files if spoken.search((ROOT / "tests" / file).read_text())], case


@pytest.mark.parametrize(("file", "pattern"), NAMED, ids=[f"{file}:{pattern}" for file, pattern in NAMED])
def test_every_test_named_exists(file, pattern):
    source = (ROOT / "tests" / file).read_text()
    names = re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE)
    assert any(fnmatch(name, pattern) for name in names)


def test_the_page_is_read_at_all():
    assert len(NAMED) > 80
    assert PAGE.count("`") == 2 * len(re.findall(r"`[\w/]+\.py: test_\w*\*?`|`tests/`|`\*`", PAGE))
