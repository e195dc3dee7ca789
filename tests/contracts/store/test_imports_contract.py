"""Episodes brought from elsewhere, on both databases: all or none, each once, trained by the rules of all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.types import Verdict
from online_agent.errors import BadInput, Conflict
from online_agent.store.records import EpisodeNew, FeedbackRule, ImportNew, TurnNew, VersionNew
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, Span, SpanKind, StopReason, VersionOrigin, VersionRun

_VERSION = VersionNew(0, VersionOrigin.SEED, content_hash="hash")


def _action(turn: int, *, version: int = 0, logprobs: tuple[float, ...] | None = (-0.5, -0.25)) -> Span:
    if logprobs is None:
        return Span(SpanKind.ACTION, turn, np.array([7, 8], np.int32))
    runs = (VersionRun(version, 0, 2),)
    return Span(SpanKind.ACTION, turn, np.array([7, 8], np.int32), np.array(logprobs, np.float32), runs)


def _item(client_id: str, action: Span | None = None, reward: float | None = 1.0, content: str = "c") -> ImportNew:
    prompt = Span(SpanKind.PROMPT, 0, np.array([1, 2, 3], np.int32))
    return ImportNew(
        client_id=client_id,
        content_hash=content,
        episode=EpisodeNew("acme", "imported:shop", "order-1", "train"),
        turns=(TurnNew([prompt, action or _action(0)]),),
        verdict=None if reward is None else Verdict(reward, reward > 0, {}),
        stop_reason=StopReason.SUBMITTED,
    )


@pytest.fixture(autouse=True)
def _known_version(db: Database) -> None:
    with db.transaction() as tx:
        assert tx.weights.next_version() == 0
        tx.weights.insert(_VERSION)


def test_an_imported_episode_is_trained_token_for_token(db: Database) -> None:
    with db.transaction() as tx:
        [outcome] = tx.imports.add("acme", [_item("log-1")])
    assert outcome.is_new
    assert outcome.untrainable_reason is None
    with db.transaction() as tx:
        [row] = tx.episodes.reserve(1, 1, 0, 8, FeedbackRule.VERDICT_ONLY, allow_fewer=False)
        assert row.id == outcome.episode_id
        assert row.token_ids.tolist() == [1, 2, 3, 7, 8]
        assert row.action_mask.tolist() == [False, False, False, True, True]
        assert row.logprobs.tolist() == [0, 0, 0, -0.5, -0.25]
        assert row.reward == 1.0
        tx.connection.rollback()


def test_a_stale_import_is_dropped_like_any_other_episode(db: Database) -> None:
    with db.transaction() as tx:
        [outcome] = tx.imports.add("acme", [_item("log-1")])
    with db.transaction() as tx:
        assert tx.episodes.reserve(1, 1, 9, 8, FeedbackRule.VERDICT_ONLY, allow_fewer=True) == []
    with db.reading() as tx:
        assert tx.episodes.get("acme", outcome.episode_id).drop_reason == "stale:9"


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (_action(0, version=41), "unknown weight version 41"),
        (_action(0, logprobs=None), "turn 0: 2 action ids but none log-probs"),
        (_action(0, logprobs=(-0.5, 0.5)), "turn 0: log-prob 0.5 is above 0"),
        (Span(SpanKind.OBSERVATION, 0, np.array([5], np.int32)), "no action tokens"),
    ],
)
def test_what_cannot_be_trained_on_exactly_is_kept_with_the_reason(db: Database, action: Span, reason: str) -> None:
    with db.transaction() as tx:
        [outcome] = tx.imports.add("acme", [_item("log-1", action)])
    assert outcome.untrainable_reason == reason
    with db.reading() as tx:
        assert tx.episodes.get("acme", outcome.episode_id).untrainable_reason == reason
        assert tx.episodes.queue().num_ready == 0


def test_an_episode_without_a_reward_is_kept_and_never_waits(db: Database) -> None:
    with db.transaction() as tx:
        [outcome] = tx.imports.add("acme", [_item("log-1", reward=None)])
    with db.reading() as tx:
        record = tx.episodes.get("acme", outcome.episode_id)
        assert (record.status, record.drop_reason, record.verdict) == (EpisodeStatus.DROPPED, "no reward", None)


def test_a_repeat_is_answered_with_the_first_id_also_after_erasure(db: Database) -> None:
    with db.transaction() as tx:
        [first] = tx.imports.add("acme", [_item("log-1")])
    with db.transaction() as tx:
        again, other = tx.imports.add("acme", [_item("log-1"), _item("log-2")])
    assert (again.episode_id, again.is_new, other.is_new) == (first.episode_id, False, True)
    with db.transaction() as tx:
        tx.episodes.erase("acme", first.episode_id)
    with db.transaction() as tx:
        [erased] = tx.imports.add("acme", [_item("log-1")])
        assert (erased.episode_id, erased.is_new) == (first.episode_id, False)
    with db.reading() as tx:
        assert [record.id for record in tx.episodes.list("acme").items] == [other.episode_id]


def test_other_contents_under_a_known_id_store_nothing_at_all(db: Database) -> None:
    with db.transaction() as tx:
        tx.imports.add("acme", [_item("log-1")])
    with pytest.raises(Conflict, match=r"episodes\.1\.id: 'log-1'"), db.transaction() as tx:
        tx.imports.add("acme", [_item("log-2"), _item("log-1", content="other")])
    with db.reading() as tx:
        assert len(tx.episodes.list("acme").items) == 1


def test_one_id_twice_in_one_import_is_refused(db: Database) -> None:
    with pytest.raises(BadInput, match=r"episodes\.2\.id: 'a' is also the id of episodes\.0"), db.transaction() as tx:
        tx.imports.add("acme", [_item("a"), _item("b"), _item("a")])


def test_tenants_do_not_share_ids(db: Database) -> None:
    with db.transaction() as tx:
        [mine] = tx.imports.add("acme", [_item("log-1")])
        item = _item("log-1", content="other")
        [theirs] = tx.imports.add("globex", [replace(item, episode=replace(item.episode, tenant_id="globex"))])
    assert theirs.is_new
    with db.reading() as tx:
        assert [record.id for record in tx.episodes.list("acme").items] == [mine.episode_id]
        assert [record.id for record in tx.episodes.list("globex").items] == [theirs.episode_id]


@pytest.mark.parametrize("mark", ["", "#1"])
def test_what_was_exported_here_is_a_duplicate_of_the_episode_itself(db: Database, mark: str) -> None:
    with db.transaction() as tx:
        episode_id = tx.episodes.create(EpisodeNew("acme", "shop", "order-1", "train"))
    with db.transaction() as tx:
        [repeat, other] = tx.imports.add("acme", [_item(episode_id + mark), _item("log-1")])
    assert (repeat.episode_id, repeat.is_new, other.is_new) == (episode_id, False, True)
    with db.reading() as tx:
        assert {record.id for record in tx.episodes.list("acme").items} == {episode_id, other.episode_id}


def test_what_another_tenant_exported_is_new(db: Database) -> None:
    with db.transaction() as tx:
        episode_id = tx.episodes.create(EpisodeNew("globex", "shop", "order-1", "train"))
        [outcome] = tx.imports.add("acme", [_item(episode_id)])
    assert outcome.is_new
    assert outcome.episode_id != episode_id
