"""The real service end to end: SGLang, DeepSpeed, Redis, nsjail, started by ``online-agent up``, spoken to over HTTP.

A short version of the demo, in which the learner is killed once. The bars are far below what a full run shows, since
16 updates and 128 episodes decide: the standard error of a difference is 0.06.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from online_agent.demo.run import Plan, run_demo

PLAN = Plan(
    seed=7, updates_before_change=16, updates_after_change=5, updates_after_rollback=2, num_sampled=128, num_greedy=24
)
UPDATES_BEFORE_KILL = 5
KILL_WITHIN_S = 500.0

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole_loop")


@pytest.fixture(scope="module")
def report(directory: Path) -> dict[str, Any]:
    return asyncio.run(_run(directory))


async def _run(directory: Path) -> dict[str, Any]:
    killer = asyncio.create_task(asyncio.to_thread(_kill_the_learner_once, directory / "service"))
    with (directory / "console.txt").open("w") as screen:
        report = await run_demo(PLAN, directory, Console(file=screen, width=120))
    await killer
    return report


def _kill_the_learner_once(data_dir: Path) -> None:
    """kill -9 in the middle of training, by the pid that the supervisor wrote down."""
    deadline = time.monotonic() + KILL_WITHIN_S
    while _num_committed(data_dir) < UPDATES_BEFORE_KILL:
        assert time.monotonic() < deadline, "training never got as far as the kill"
        time.sleep(0.5)
    os.kill(json.loads((data_dir / "run" / "api.json").read_text())["pids"]["learner"], signal.SIGKILL)


def _num_committed(data_dir: Path) -> int:
    database = data_dir / "online_agent.db"
    if not (data_dir / "run" / "api.json").exists():
        return 0
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        (count,) = connection.execute("select count(*) from steps where status = 'committed'").fetchone()
    connection.close()
    return int(count)


def test_live_episodes_raise_the_success_on_held_out_tasks(report: dict[str, Any]) -> None:
    assert report["success_trained"] >= report["success_before"] + 0.08


def test_a_silent_rename_costs_the_frozen_weights_their_success(report: dict[str, Any]) -> None:
    assert report["success_at_change"] <= report["success_trained"] - 0.15


def test_no_request_fails_while_versions_are_swapped_under_traffic(report: dict[str, Any]) -> None:
    assert report["requests_failed"] == 0
    assert report["swaps_under_traffic"] >= 15


def test_a_killed_learner_loses_no_episode_and_trains_none_twice(report: dict[str, Any]) -> None:
    assert report["episodes_lost"] == 0
    assert report["episodes_trained_twice"] == 0
    assert report["updates"]["committed"] >= 23


def test_the_trainer_and_the_engine_agree_on_fresh_tokens(report: dict[str, Any]) -> None:
    assert report["logprob_gap_max"] < 1e-4


def test_a_rollback_serves_the_old_content_and_learning_goes_on_from_it(report: dict[str, Any]) -> None:
    assert report["rollback_ok"], report["rollback"]


def test_every_reset_of_the_reference_is_an_event(report: dict[str, Any]) -> None:
    assert "rollback" in report["resets"]


def test_the_report_lies_where_the_screen_says(report: dict[str, Any], directory: Path) -> None:
    assert json.loads((directory / "report.json").read_text())["seed"] == PLAN.seed
    assert (directory / "report.html").stat().st_size > 20_000
    assert report["wall_seconds"] < 900
