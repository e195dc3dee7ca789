"""Clients' episodes on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from online_agent.errors import Conflict
from online_agent.store.models import Turn
from online_agent.store.records import CompletionLink, FeedbackNew, SeenEpisode
from online_agent.store.repositories import clients
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, StopReason
from tests.database_fixtures import ManualClock
from tests.fakes.client_episodes import answer, open_client
from tests.fakes.episodes import TENANT, commit_step, reserve_step, seed_version


def test_a_name_is_one_episode_whoever_opens_it_first(db: Database) -> None:
    barrier = threading.Barrier(4)

    def race(_: int) -> str:
        barrier.wait()
        return open_client(db, "task")

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(race, range(4)))) == 1
    with db.reading() as tx:
        assert tx.clients.find("globex", "task") is None


def test_an_episode_is_found_by_indexes_however_many_its_tenant_has(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    with db.reading() as tx:
        found = str(clients.FIND.statement.compile(dialect=tx.connection.dialect))
        plan = tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {found}", ("acme", "task", "task")).all()
    db.close()
    assert [step for *_, step in plan if step.startswith("SCAN")] == []
    assert sum("INDEX" in step for *_, step in plan) >= 3, "by id, by name, and the episode itself"


def test_a_retry_changes_places_and_every_count_follows(db: Database, clock: ManualClock) -> None:
    episode_id = open_client(db)
    answer(db, episode_id, num_tokens=3)
    clock.advance(1)
    assert answer(db, episode_id, completion_id="again", num_tokens=5) == 0
    with db.reading() as tx:
        record, client = tx.episodes.get(TENANT, episode_id), tx.clients.get(episode_id)
        [old] = tx.clients.discarded(episode_id)
        assert tx.clients.find_turns(TENANT, "c-p") == (episode_id, [0])
        assert tx.clients.find_turns(TENANT, "again") == (episode_id, [0])
        assert tx.clients.completion(TENANT, "c-p") == []
    assert (record.num_turns, record.num_action_tokens, record.num_tool_calls) == (1, 5, 1)
    assert (client.num_kept_tokens, client.num_discarded_tokens, client.num_sampled_tokens) == (5, 3, 8)
    assert (old.completion_id, old.num_sampled, old.text) == ("c-p", 3, "p")


def test_an_answer_whose_parent_was_replaced_meanwhile_keeps_the_context_it_was_sampled_behind(
    db: Database, clock: ManualClock
) -> None:
    episode_id = open_client(db)
    answer(db, episode_id)
    with db.reading() as tx:
        context = tx.clients.spans_of(episode_id, [0])[0]
    clock.advance(1)
    answer(db, episode_id, completion_id="again", num_tokens=5)
    turn = answer(db, episode_id, "q", parent=0, parent_completion="c-p", context=context)
    with db.reading() as tx:
        link = tx.clients.links(episode_id)[turn]
        [_, row] = tx.clients.training_rows(episode_id, 1.0)
    assert (link.segment, link.branched_from) == (1, None)
    assert row.token_ids.tolist() == [0, 1, 2, 3, 100, 101, 102, 0, 1, 2, 3, 100, 101, 102]
    assert row.num_action_tokens == 3


def test_an_episode_that_nobody_wrote_to_since_is_not_read_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    episode_id, read = open_client(db), []
    answer(db, episode_id)
    seen, links = _seen(db, episode_id), clients.ClientRepository.links

    def counted(self: clients.ClientRepository, of: str) -> list[CompletionLink]:
        read.append(of)
        return links(self, of)

    monkeypatch.setattr(clients.ClientRepository, "links", counted)
    answer(db, episode_id, "q", parent=0, parent_completion="c-p", seen=seen)
    assert read == []
    answer(db, episode_id, "r", parent=1, parent_completion="c-q", seen=seen)
    assert read == [episode_id], "there was another turn by then"
    with db.reading() as tx:
        assert [link.segment for link in links(tx.clients, episode_id)] == [0, 0, 0]


def test_what_was_seen_before_a_retry_is_not_taken_for_what_is_there(db: Database, clock: ManualClock) -> None:
    episode_id = open_client(db)
    answer(db, episode_id)
    seen = _seen(db, episode_id)
    with db.reading() as tx:
        context = tx.clients.spans_of(episode_id, [0])[0]
    clock.advance(1)
    answer(db, episode_id, completion_id="again", num_tokens=5)
    turn = answer(db, episode_id, "q", parent=0, parent_completion="c-p", context=context, seen=seen)
    with db.reading() as tx:
        link = tx.clients.links(episode_id)[turn]
    assert (link.segment, link.branched_from) == (1, None), "its parent is gone: it begins a segment of its own"


def _seen(db: Database, episode_id: str) -> SeenEpisode:
    with db.reading() as tx:
        return SeenEpisode(tx.clients.get(episode_id), tx.clients.links(episode_id))


def test_a_closed_episode_is_graded_by_feedback_and_trained_once_with_all_its_segments(db: Database) -> None:
    seed_version(db)
    episode_id = open_client(db, "task")
    answer(db, episode_id, "p")
    answer(db, episode_id, "q", num_tokens=2)
    with db.transaction() as tx:
        assert tx.clients.close(episode_id, StopReason.CLOSED)
        assert not tx.clients.close(episode_id, StopReason.CLOSED)
        tx.feedback.add(TENANT, episode_id, FeedbackNew("ann", 0.5))
        tx.clients.settle(episode_id)
    with pytest.raises(Conflict, match="takes no more answers"):
        answer(db, episode_id, "r")
    step = reserve_step(db, 2)
    assert step is not None
    commit_step(db, step)
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
        assert (record.status, record.step) == (EpisodeStatus.TRAINED, step)
        assert (tx.steps.get(step).num_episodes, tx.episodes.trained_twice()) == (1, 0)
        assert tx.clients.tokens().num_kept == 5
        assert tx.clients.tokens().mean_kept_share == 1.0


def test_a_row_that_does_not_line_up_drops_the_episode_whole(db: Database) -> None:
    seed_version(db)
    episode_id = open_client(db)
    answer(db, episode_id, "p")
    with db.transaction() as tx:
        tx.clients.close(episode_id, StopReason.CLOSED)
        tx.feedback.add(TENANT, episode_id, FeedbackNew("ann", 1.0))
        tx.clients.settle(episode_id)
        index = [["prompt", 0, 4, None, []], ["action", 0, 3, 2, [[0, 0, 3]]]]
        tx.connection.execute(update(Turn).values(span_index=index))
    assert reserve_step(db, 1) is None
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, episode_id).drop_reason == "misaligned"


def test_only_an_episode_without_calls_since_then_is_idle(db: Database, clock: ManualClock) -> None:
    quiet, busy = open_client(db), open_client(db)
    clock.advance(60)
    answer(db, busy)
    since = clock.now - 30
    with db.transaction() as tx:
        assert tx.clients.idle(since) == [quiet]
        assert not tx.clients.close(busy, StopReason.IDLE, since)
        assert tx.clients.close(quiet, StopReason.IDLE, since)
        assert tx.clients.drop_unrewarded(clock.now) == 1
        assert tx.episodes.get(TENANT, quiet).drop_reason == "no reward"


def test_rewards_pass_down_to_every_generation_of_sub_agents(db: Database) -> None:
    root = open_client(db)
    child = open_client(db, parent_id=root)
    grandchild = open_client(db, parent_id=child)
    for episode_id in (root, child, grandchild):
        answer(db, episode_id)
        with db.transaction() as tx:
            tx.clients.close(episode_id, StopReason.CLOSED)
    with db.transaction() as tx:
        tx.feedback.add(TENANT, root, FeedbackNew("ann", -0.25))
        tx.clients.settle(root)
        verdicts = [tx.episodes.get(TENANT, each).verdict for each in (root, child, grandchild)]
    assert [verdict and verdict.reward for verdict in verdicts] == [-0.25] * 3


def test_erasing_takes_everything_with_it(db: Database, clock: ManualClock) -> None:
    episode_id = open_client(db, "task")
    answer(db, episode_id)
    clock.advance(1)
    answer(db, episode_id, completion_id="again")
    with db.transaction() as tx:
        tx.episodes.erase(TENANT, episode_id)
        assert tx.clients.find(TENANT, "task") is None
        assert tx.clients.find_turns(TENANT, "again") is None
        assert tx.clients.find_turns(TENANT, "c-p") is None
