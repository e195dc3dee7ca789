"""Logs are JSON lines in the process's own file, carry the bound ids, and hold no secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from online_agent.config.settings import load_settings
from online_agent.telemetry import tracing
from online_agent.telemetry.logging import bound, get_logger, setup_logging
from tests.fakes.tracing import kept_spans, trace_of
from tests.plain_logs import log_plainly


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level
    log_plainly()


def lines(data_dir: Path, process: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data_dir / "logs" / f"{process}.log").read_text().splitlines()]


def test_a_line_carries_process_time_level_and_ids(tmp_path: Path) -> None:
    setup_logging("worker", load_settings(data_dir=tmp_path))
    with bound(episode="ep1"):
        get_logger("jobs").info("graded", reward=1.0, version=3)
    get_logger("jobs").info("outside")
    inside, outside = lines(tmp_path, "worker")
    assert inside["process"] == "worker"
    assert inside["event"] == "graded"
    assert inside["level"] == "info"
    assert (inside["episode"], inside["reward"], inside["version"]) == ("ep1", 1.0, 3)
    assert inside["timestamp"].endswith("Z")
    assert "episode" not in outside


def test_a_library_using_the_standard_module_lands_in_the_same_file(tmp_path: Path) -> None:
    setup_logging("api", load_settings(data_dir=tmp_path))
    logging.getLogger("some.library").warning("disk %s", "slow")
    (line,) = lines(tmp_path, "api")
    assert (line["event"], line["logger"], line["process"]) == ("disk slow", "some.library", "api")


def test_the_level_of_the_settings_is_kept(tmp_path: Path) -> None:
    setup_logging("api", load_settings(data_dir=tmp_path, log_level="warning"))
    get_logger("x").info("not written")
    get_logger("x").error("written")
    assert [line["event"] for line in lines(tmp_path, "api")] == ["written"]


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    setup_logging("api", load_settings(data_dir=tmp_path))
    get_logger("x").info(
        "connect redis://:hunter2@127.0.0.1:1/0",
        headers={"Authorization": "Bearer abcdef123456", "x-api-key": "k-9"},
        nested=[{"password": "pw-1"}],
        argv="--api-key zzz9 --port 1",
        max_tokens=512,
        key_id="kept",
    )
    try:
        raise ValueError("postgresql://bob:pw-2@host/db")
    except ValueError:
        get_logger("x").exception("failed")
    text = (tmp_path / "logs" / "api.log").read_text()
    for secret in ("hunter2", "abcdef123456", "k-9", "pw-1", "zzz9", "pw-2"):
        assert secret not in text
    first = lines(tmp_path, "api")[0]
    assert first["max_tokens"] == 512
    assert first["key_id"] == "kept"
    assert "--port 1" in first["argv"]


def test_a_rotated_file_is_reopened(tmp_path: Path) -> None:
    setup_logging("api", load_settings(data_dir=tmp_path))
    get_logger("x").info("before")
    path = tmp_path / "logs" / "api.log"
    path.rename(path.with_suffix(".1"))
    get_logger("x").info("after")
    assert [line["event"] for line in lines(tmp_path, "api")] == ["after"]


def test_lines_inside_a_span_name_its_trace_also_those_of_libraries(tmp_path: Path) -> None:
    setup_logging("worker", load_settings(data_dir=tmp_path))
    with kept_spans() as spans:
        with tracing.span("work"):
            get_logger("jobs").info("graded")
            logging.getLogger("a.library").warning("slow")
        get_logger("jobs").info("outside")
        [span] = spans.all()
    ours, theirs, outside = lines(tmp_path, "worker")
    assert ours["trace_id"] == theirs["trace_id"] == trace_of(span)
    assert "trace_id" not in outside
