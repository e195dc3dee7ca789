"""A thousand streams of a token a second on one API process: none fails, and nothing of them stays."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.proxies import sides
from benchmarks.proxies.streams import Holdings, holdings, wave
from tests.waiting import until

NUM_STREAMS = 1000
TEXT = "add a and b"
KEPT_BYTES_PER_STREAM = 8192
"""Less than one exchange with its sampler, tasks and answer: one that stays behind each stream is found."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * NUM_STREAMS:
        pytest.skip(f"only {hard} files may be open at once")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def side(many_files: None, tmp_path: Path) -> Iterator[sides.Side]:
    script = sides.make_script(token_delay_s=1.0, text=TEXT)
    with sides.scripted_engine(script) as engine, sides.service(engine, tmp_path) as running:
        yield running


def connections_in_use(side: sides.Side) -> float:
    text = httpx.get(f"{side.base_url}/metrics", headers=side.headers, timeout=30, trust_env=False).text
    [value] = re.findall(r"^online_agent_database_connections_in_use (\S+)$", text, re.MULTILINE)
    return float(value)


async def settled(side: sides.Side, num_files: int) -> Holdings:
    """What the process holds once its connections are closed."""
    await until(lambda: holdings(side.pid).num_files <= num_files, timeout_s=30)
    return holdings(side.pid)


@pytest.mark.timeout(300)
async def test_a_thousand_streams_end_whole_and_leave_nothing(side: sides.Side) -> None:
    warm = await wave(side, "warm", 20, TEXT)
    assert (warm.num_right, warm.errors) == (20, {})
    before = holdings(side.pid).num_files
    after: list[Holdings] = []
    for name in ("first", "second"):
        told = await wave(side, name, NUM_STREAMS, TEXT)
        assert (told.num_right, told.errors) == (NUM_STREAMS, {})
        assert told.most_open == NUM_STREAMS, "all were open at one moment"
        after.append(await settled(side, before))
        assert connections_in_use(side) == 0
    growth = (after[1].memory_bytes - after[0].memory_bytes) / NUM_STREAMS
    assert growth < KEPT_BYTES_PER_STREAM
