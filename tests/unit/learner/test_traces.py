"""A step is linked to the traces of its episodes, and each of these leads to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.trace import StatusCode, format_trace_id

from envs.types import Verdict
from online_agent.errors import Fenced
from online_agent.learner.tracing import traced_step
from online_agent.store.records import EpisodeNew
from online_agent.store.session import Database
from tests.fakes.episodes import TENANT, finish_member, reserve_step, seed_version
from tests.fakes.tracing import Spans, kept_spans, trace_of

TRACES = [f"{number:032x}" for number in (1, 2)]
PARENTS = [f"00-{trace}-{number:016x}-01" for number, trace in enumerate(TRACES, start=1)]


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.close()


@pytest.fixture
def spans() -> Iterator[Spans]:
    with kept_spans() as kept:
        yield kept


def reserved(db: Database, traceparents: list[str | None]) -> tuple[int, list[str]]:
    ids = []
    for traceparent in traceparents:
        with db.transaction() as tx:
            new = EpisodeNew(TENANT, "bug_repair", "train-1", "train", traceparent=traceparent)
            ids.append(tx.episodes.create(new))
        finish_member(db, ids[-1])
        with db.transaction() as tx:
            tx.episodes.grade(ids[-1], Verdict(1.0, True))
    seed_version(db)
    step = reserve_step(db, len(traceparents))
    assert step is not None
    return step, ids


def test_each_trace_of_the_batch_gets_the_step_and_the_step_links_to_all(db: Database, spans: Spans) -> None:
    step, ids = reserved(db, [*PARENTS, None])
    with traced_step(db, step, 0, 3) as traced:
        traced.committed(7)
    *children, own = sorted(spans.all(), key=lambda span: bool(span.parent) is False)
    assert [span.name for span in (own, *children)] == ["train step 1"] * 3
    assert [format_trace_id(link.context.trace_id) for link in own.links] == TRACES
    assert [dict(link.attributes or {}) for link in own.links] == [{"online_agent.episode.id": i} for i in ids[:2]]
    assert [trace_of(span) for span in children] == TRACES
    assert [span.parent.span_id for span in children if span.parent] == [1, 2]
    for child, episode_id in zip(children, ids[:2], strict=True):
        assert [link.context.span_id for link in child.links] == [own.context.span_id]
        assert dict(child.attributes or {}) == {
            "online_agent.step": 1,
            "online_agent.parent_version": 0,
            "online_agent.step.num_episodes": 3,
            "online_agent.step.outcome": "committed",
            "online_agent.weight_version": 7,
            "online_agent.episode.id": episode_id,
        }
        assert child.start_time is not None
        assert own.start_time is not None
        assert child.start_time <= own.start_time


def test_episodes_of_one_trace_get_one_span(db: Database, spans: Spans) -> None:
    step, _ = reserved(db, [PARENTS[0], PARENTS[0]])
    with traced_step(db, step, 0, 2) as traced:
        traced.skipped("gradient is not finite")
    child, own = spans.all()
    assert len(own.links) == 2
    assert child.attributes is not None
    assert child.attributes["online_agent.step.outcome"] == "skipped"
    assert child.attributes["online_agent.step.reason"] == "gradient is not finite"


def test_a_step_that_was_fenced_out_says_so_in_every_trace(db: Database, spans: Spans) -> None:
    step, _ = reserved(db, [PARENTS[0]])
    with pytest.raises(Fenced), traced_step(db, step, 0, 1):
        raise Fenced("a rollback came in between")
    child, own = spans.all()
    assert own.status.status_code is StatusCode.ERROR
    assert child.attributes is not None
    assert child.attributes["online_agent.step.outcome"] == "given_up"


def test_without_tracing_the_database_is_not_asked() -> None:
    with traced_step(None, 1, 0, 1) as traced:  # type: ignore[arg-type]
        traced.committed(1)
