"""The real worker process on a real Redis: kill -9 in the middle of grading, and Redis gone for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from online_agent.config.settings import BrokerSettings, Settings, load_settings
from online_agent.errors import BrokerUnavailable
from online_agent.jobs.enqueue import JobQueue
from online_agent.jobs.redis import RedisServer, is_redis_up, prepare_redis
from online_agent.store.session import Database
from online_agent.supervisor.plan import free_port
from online_agent.types import EpisodeStatus
from tests.fakes.tenants import opt_in
from tests.unit.jobs.conftest import TENANT, finish_episode

FAST = {
    "ONLINE_AGENT_JOBS__GRADE_SWEEP_S": "0.5",
    "ONLINE_AGENT_JOBS__GRADING_LEASE_S": "2",
    "ONLINE_AGENT_JOBS__NUM_PROCESSES": "1",
    "ONLINE_AGENT_JOBS__PUBLISH_SWEEP_S": "60",
    "ONLINE_AGENT_JOBS__ENGINE_CHECK_S": "60",
    "ONLINE_AGENT_DRIFT__SCAN_INTERVAL_S": "60",
}


def wait_until(condition: Callable[[], bool], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not become true in time"
        time.sleep(0.05)


@contextmanager
def running_redis(server: RedisServer) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: is_redis_up(server.url), 10)
        yield process
    finally:
        process.kill()
        process.wait()


class Workplace:
    """A data directory, its broker, and workers started on them."""

    def __init__(self, data_dir: Path, server: RedisServer) -> None:
        self.data_dir, self.server = data_dir, server
        self.flags = data_dir / "flags"
        self.flags.mkdir()
        self.db = Database(f"sqlite:///{data_dir / 'online_agent.db'}", busy_timeout_s=10.0)
        self.db.migrate()
        opt_in(self.db)
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def settings(self) -> Settings:
        return load_settings(data_dir=self.data_dir, broker=BrokerSettings(url=self.server.url))

    def start_worker(self, **settings: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            **FAST,
            **settings,
            "ONLINE_AGENT_DATA_DIR": str(self.data_dir),
            "ONLINE_AGENT_BROKER__URL": self.server.url,
            "OMP_NUM_THREADS": "1",
        }
        with (self.data_dir / "worker.out").open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.jobs.worker_process", str(self.flags)],
                env=env,
                cwd=Path(__file__).parents[3],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def restart_what_ended(self) -> bool:
        """What a supervisor does: a worker that lost its broker for good ends, and is started again."""
        if self.workers[-1].poll() is not None:
            self.start_worker()
        return False

    def started(self) -> list[str]:
        return [line for file in self.flags.glob("started-*") for line in file.read_text().split()]

    def status(self, episode_id: str) -> EpisodeStatus:
        with self.db.reading() as tx:
            return tx.episodes.get(TENANT, episode_id).status

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.db.close()


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    place = Workplace(tmp_path, prepare_redis(tmp_path / "redis", free_port()))
    yield place
    place.close()


@pytest.mark.slow
def test_c23_kill_9_of_the_worker_in_the_middle_of_grading_grades_once(workplace: Workplace) -> None:
    with running_redis(workplace.server):
        first = workplace.start_worker()
        episode_id = finish_episode(workplace.db)
        queue = JobQueue(workplace.settings)
        queue.grade(episode_id)
        wait_until(lambda: workplace.started() == ["train-0"])
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert workplace.status(episode_id) is EpisodeStatus.FINISHED
        (workplace.flags / "release").touch()

        second = workplace.start_worker()
        wait_until(lambda: workplace.status(episode_id) is EpisodeStatus.GRADED)
        assert workplace.started() == ["train-0", "train-0"]
        time.sleep(2.5)  # the killed worker's message and more sweeps arrive, and find nothing to do
        assert workplace.started() == ["train-0", "train-0"]

        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
        queue.close()


@pytest.mark.slow
def test_c23_what_is_delivered_again_to_a_second_worker_while_the_first_works_is_done_once(
    workplace: Workplace,
) -> None:
    """Each sweep is one more delivery: about six in the three seconds that the first worker takes."""
    with running_redis(workplace.server):
        for _ in range(2):
            workplace.start_worker(ONLINE_AGENT_JOBS__GRADING_LEASE_S="20")
        episode_id = finish_episode(workplace.db)
        wait_until(lambda: workplace.started() == ["train-0"])
        time.sleep(3.0)
        assert workplace.started() == ["train-0"]
        (workplace.flags / "release").touch()
        wait_until(lambda: workplace.status(episode_id) is EpisodeStatus.GRADED)
        other = finish_episode(workplace.db, "train-1")
        wait_until(lambda: workplace.status(other) is EpisodeStatus.GRADED)
        assert sorted(workplace.started()) == ["train-0", "train-1"]


@pytest.mark.slow
def test_an_episode_that_finished_while_redis_was_down_is_graded_when_it_is_back(workplace: Workplace) -> None:
    (workplace.flags / "release").touch()
    with running_redis(workplace.server):
        workplace.start_worker()
        first = finish_episode(workplace.db)
        wait_until(lambda: workplace.status(first) is EpisodeStatus.GRADED)
    episode_id = finish_episode(workplace.db, "train-1")
    queue = JobQueue(workplace.settings)
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        queue.grade(episode_id)
    assert time.monotonic() - started < 2
    queue.close()
    assert workplace.status(episode_id) is EpisodeStatus.FINISHED
    with running_redis(workplace.server):
        wait_until(lambda: workplace.restart_what_ended() or workplace.status(episode_id) is EpisodeStatus.GRADED)
