"""Jobs are sent to a real Redis; one that is down or deaf costs the caller little and loses nothing."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from online_agent.config.settings import BrokerSettings, JobsSettings, Settings, load_settings
from online_agent.errors import BrokerUnavailable, ConfigError
from online_agent.jobs.app import make_app
from online_agent.jobs.enqueue import GRADE_WAKE_KEY, JobQueue, tolerant
from online_agent.jobs.redis import RedisServer, connect, is_redis_up
from online_agent.supervisor.plan import free_port


def settings_for(url: str) -> Settings:
    return load_settings(broker=BrokerSettings(url=url))


def sent(server: RedisServer) -> list[tuple[str, dict[str, object]]]:
    with connect(server.url) as client:
        messages = [json.loads(raw) for raw in reversed(client.lrange("celery", 0, -1))]
    return [(m["headers"]["task"], json.loads(base64.b64decode(m["body"]))[1]) for m in messages]


@pytest.fixture
def queue(redis_server: RedisServer) -> Iterator[JobQueue]:
    with connect(redis_server.url) as client:
        client.flushall()
    queue = JobQueue(settings_for(redis_server.url))
    yield queue
    queue.close()


def test_each_job_is_sent_with_its_arguments(queue: JobQueue, redis_server: RedisServer) -> None:
    queue.grade("ep_1")
    queue.publish(7)
    queue.rollback(3, "key_1")
    names, arguments = zip(*sent(redis_server), strict=True)
    assert names == ("jobs.grade", "jobs.publish", "jobs.rollback")
    assert arguments[1] == {"version": 7}
    assert (arguments[2]["target"], arguments[2]["actor"]) == (3, "key_1")


def test_each_rollback_has_an_identity_of_its_own(queue: JobQueue, redis_server: RedisServer) -> None:
    queue.rollback(3, "key_1")
    queue.rollback(3, "key_1")
    first, second = (arguments["request_id"] for _, arguments in sent(redis_server))
    assert first
    assert first != second


def test_wake_ups_of_the_grader_that_wait_are_not_repeated(queue: JobQueue, redis_server: RedisServer) -> None:
    for n in range(20):
        queue.grade(f"ep_{n}")
    assert len(sent(redis_server)) == 1
    with connect(redis_server.url) as client:
        client.delete(GRADE_WAKE_KEY)  # as the worker does before it looks for work
    queue.grade("ep_20")
    assert len(sent(redis_server)) == 2


def test_a_lost_wake_up_stops_nothing_for_long(queue: JobQueue, redis_server: RedisServer) -> None:
    queue.grade("ep_1")
    with connect(redis_server.url) as client:
        assert 0 < client.pttl(GRADE_WAKE_KEY) <= 2000


@pytest.mark.parametrize("send", [lambda q: q.grade("ep_1"), lambda q: q.publish(1), lambda q: q.rollback(1, "k")])
def test_a_broker_that_is_down_is_reported_at_once(send: object) -> None:
    queue = JobQueue(settings_for(f"redis://127.0.0.1:{free_port()}/0"))
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        send(queue)  # type: ignore[operator]
    assert time.monotonic() - started < 2
    queue.close()


def test_a_broker_that_accepts_but_never_answers_is_reported_within_two_seconds() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        queue = JobQueue(settings_for(f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"))
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            queue.publish(1)
        assert time.monotonic() - started < 2
        queue.close()


def test_callers_do_not_queue_up_behind_a_broker_that_is_down() -> None:
    now = [100.0]
    queue = JobQueue(settings_for(f"redis://127.0.0.1:{free_port()}/0"), clock=lambda: now[0])
    with pytest.raises(BrokerUnavailable):
        queue.publish(1)
    with pytest.raises(BrokerUnavailable, match="a moment ago"):
        queue.publish(1)
    now[0] += 3
    with pytest.raises(BrokerUnavailable, match="refused"):
        queue.publish(1)
    queue.close()


def test_a_wrong_password_is_a_broker_that_is_unavailable(redis_server: RedisServer) -> None:
    port = redis_server.url.rsplit(":", 1)[1]
    queue = JobQueue(settings_for(f"redis://:wrong@127.0.0.1:{port}"))
    with pytest.raises(BrokerUnavailable):
        queue.publish(1)
    queue.close()
    assert not is_redis_up(f"redis://127.0.0.1:{port}")


def test_the_tolerant_sender_leaves_the_work_to_the_sweep() -> None:
    queue = JobQueue(settings_for(f"redis://127.0.0.1:{free_port()}/0"))
    tolerant(queue.grade)("ep_1")
    queue.close()


def test_the_packaged_server_hides_its_password(redis_server: RedisServer) -> None:
    password = redis_server.url.split(":")[2].split("@")[0]
    assert len(password) >= 32
    assert not any(password in argument for argument in redis_server.argv)
    assert Path(redis_server.argv[1]).stat().st_mode & 0o777 == 0o600


def test_an_application_without_a_broker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"broker\.url is empty"):
        make_app(load_settings())


def test_c23_a_visibility_timeout_shorter_than_a_job_may_take_is_refused() -> None:
    settings = load_settings(
        broker=BrokerSettings(url="redis://127.0.0.1:1/0", visibility_timeout_s=2),
        jobs=JobsSettings(soft_time_limit_s=5, hard_time_limit_s=6),
    )
    with pytest.raises(ConfigError, match="visibility_timeout_s=2"):
        make_app(settings)


def test_messages_are_json_and_acknowledged_only_after_the_work() -> None:
    conf = make_app(settings_for("redis://127.0.0.1:1/0")).conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    assert conf.task_time_limit < conf.broker_transport_options["visibility_timeout"]
