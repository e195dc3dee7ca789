"""The HTTP process may hold thousands of streams, whatever shell it was started from."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from online_agent.processes.serve import OPEN_FILES, allow_many_files


@pytest.fixture
def hard() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_limit_of_open_files_is_raised_as_far_as_allowed(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    allow_many_files()
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)


def test_a_limit_that_is_high_enough_stays(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("online_agent.processes.serve.OPEN_FILES", 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    allow_many_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1000, hard)
