"""Weight versions, changes, events, keys, idempotency, leases and series, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from envs.types import Artifact, Verdict
from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.records import ChangeNew, Done, EpisodeNew, Fresh, Mismatch, Running, VersionNew
from online_agent.store.session import Database
from online_agent.types import ChangeState, Sampling, Scope, StopReason, VersionOrigin, VersionState, Visibility
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import TENANT, finished_episode, graded_episode, make_turn, open_episode, seed_version

S = VersionState


def _insert(db: Database, version: int, **values: object) -> None:
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(version, VersionOrigin.STEP, **values))  # type: ignore[arg-type]


# --- weight versions ------------------------------------------------------------------------------------------------


def test_a_number_is_given_out_once_and_only_rises(db: Database) -> None:
    with db.transaction() as tx:
        assert [tx.weights.next_version() for _ in range(3)] == [0, 1, 2]
    _insert(db, 5)
    with db.transaction() as tx:
        assert tx.weights.next_version() == 6
    for version in (5, 4):
        with pytest.raises(Conflict, match=f"version {version} does not rise above version 5"):
            _insert(db, version)


def test_serving_a_version_retires_the_one_that_served(db: Database, clock: ManualClock) -> None:
    seed_version(db)
    _insert(db, 1)
    clock.advance(3)
    with db.transaction() as tx:
        assert tx.weights.move(1, {S.CANDIDATE}, S.LOADING)
        assert tx.weights.move(1, {S.LOADING}, S.VERIFIED)
        assert tx.weights.move(1, {S.VERIFIED}, S.SERVING)
    with db.reading() as tx:
        serving = tx.weights.serving()
        assert serving is not None
        assert (serving.version, serving.served_at) == (1, clock.now)
        assert tx.weights.get(0).state is S.RETIRED


def test_a_move_happens_only_from_the_state_it_names(db: Database) -> None:
    _insert(db, 0)
    with db.transaction() as tx:
        assert not tx.weights.move(0, {S.LOADING}, S.VERIFIED)
        assert not tx.weights.move(7, {S.CANDIDATE}, S.LOADING)
        assert tx.weights.get(0).state is S.CANDIDATE
        assert tx.weights.move(0, {S.CANDIDATE, S.LOADING}, S.REJECTED, "not finite")
        assert tx.weights.get(0).state_reason == "not finite"
        with pytest.raises(Conflict, match="cannot go from rejected to serving"):
            tx.weights.move(0, {S.REJECTED}, S.SERVING)


def test_candidates_are_oldest_first_and_lists_newest_first(db: Database) -> None:
    for version in range(4):
        _insert(db, version)
    with db.transaction() as tx:
        tx.weights.move(1, {S.CANDIDATE}, S.REJECTED)
    with db.reading() as tx:
        assert [v.version for v in tx.weights.candidates()] == [0, 2, 3]
        assert [v.version for v in tx.weights.in_states({S.REJECTED})] == [1]
        assert [v.version for v in tx.weights.list(limit=2)] == [3, 2]
        assert [v.version for v in tx.weights.list(limit=2, before=2)] == [1, 0]
        assert tx.weights.latest() == tx.weights.get(3)
        assert tx.weights.serving() is None
        with pytest.raises(NotFound):
            tx.weights.get(9)


def test_what_must_stay_on_disk_is_kept(db: Database) -> None:
    """C32: serving, its rollback target, the pinned and the newest are never pruned."""
    for version in range(10):
        _insert(db, version)
        with db.transaction() as tx:
            tx.weights.move(version, {S.CANDIDATE}, S.REJECTED if version > 6 else S.VERIFIED)
            if version <= 6:
                tx.weights.move(version, {S.VERIFIED}, S.SERVING)
    with db.transaction() as tx:
        tx.weights.pin(2)
        assert tx.weights.keep(num_latest=2) == {2, 5, 6, 8, 9}
        tx.weights.unpin(2)
        assert tx.weights.keep(num_latest=1, rollback_depth=2) == {4, 5, 6, 9}
        with pytest.raises(NotFound):
            tx.weights.pin(99)


def test_control_keeps_pause_and_one_reset_request(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        assert (tx.control.get().is_paused, tx.control.take_reset_request()) == (False, None)
        tx.control.pause()
        tx.control.request_reset("drift")
        tx.control.request_reset("operator")
    with db.transaction() as tx:
        assert tx.control.get().is_paused
        request = tx.control.take_reset_request()
        assert request is not None
        assert (request.cause, request.requested_at) == ("operator", clock.now)
        assert tx.control.take_reset_request() is None
        tx.control.resume()
        assert not tx.control.get().is_paused


# --- changes --------------------------------------------------------------------------------------------------------


def _change(db: Database, starts: int = 0, ends: int | None = None, kind: str = "rename_tool") -> str:
    new = ChangeNew(TENANT, "bug_repair", kind, {"tool": "edit"}, Visibility.SILENT, starts, ends)
    with db.transaction() as tx:
        return tx.changes.add(new).id


def test_a_change_that_starts_now_is_active_until_it_is_reverted(db: Database, clock: ManualClock) -> None:
    change = _change(db)
    with db.transaction() as tx:
        (active,) = tx.changes.active("bug_repair")
        assert (active.id, active.params, active.visibility) == (change, {"tool": "edit"}, Visibility.SILENT)
        assert tx.changes.active("other") == []
        clock.advance(1)
        assert tx.changes.revert(TENANT, change).ended_at == clock.now
        assert tx.changes.active("bug_repair") == []
        with pytest.raises(Conflict, match="has ended"):
            tx.changes.revert(TENANT, change)
        with pytest.raises(NotFound):
            tx.changes.revert("rival", change)
        assert [c.id for c in tx.changes.list(TENANT)] == [change]


def test_a_change_starts_and_ends_when_its_environment_has_finished_enough_episodes(db: Database) -> None:
    finished_episode(db)
    change = _change(db, starts=2, ends=3)
    with db.transaction() as tx:
        assert tx.changes.active("bug_repair") == []
    finished_episode(db)
    open_episode(db)
    with db.transaction() as tx:
        assert tx.changes.activate_due("bug_repair") == []
    finished_episode(db)
    with db.transaction() as tx:
        assert [(c.id, c.state) for c in tx.changes.activate_due("bug_repair")] == [(change, ChangeState.ACTIVE)]
        assert tx.changes.activate_due("bug_repair") == []
    with db.transaction() as tx:
        assert [(c.id, c.state) for c in tx.changes.activate_due("bug_repair", 4)] == [(change, ChangeState.ENDED)]


def test_active_changes_are_in_the_order_they_came_into_force(db: Database, clock: ManualClock) -> None:
    late = _change(db, starts=1)
    clock.advance(1)
    now = _change(db, kind="move_path")
    clock.advance(1)
    with db.transaction() as tx:
        tx.changes.activate_due("bug_repair", 1)
        assert [c.id for c in tx.changes.active("bug_repair", TENANT)] == [now, late]
        assert tx.changes.active("bug_repair", "rival") == []


@pytest.mark.parametrize(("starts", "ends"), [(-1, None), (0, 0), (5, 5), (5, 3)])
def test_a_change_with_impossible_counts_is_refused(db: Database, starts: int, ends: int | None) -> None:
    with pytest.raises(BadInput, match="after_episodes"):
        _change(db, starts, ends)


# --- events, detectors, processes, leases ---------------------------------------------------------------------------


def test_events_are_read_by_kind_and_from_an_id(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        ids = [tx.events.add(kind, {"n": n}, version=n) for n, kind in enumerate(["swap", "reset", "swap"])]
    with db.reading() as tx:
        assert [e.data["n"] for e in tx.events.list()] == [0, 1, 2]
        assert [e.version for e in tx.events.list(kinds=["swap"])] == [0, 2]
        assert [e.id for e in tx.events.list(after_id=ids[0], limit=1)] == [ids[1]]
        assert [e.id for e in tx.events.latest(limit=2)] == [ids[2], ids[1]]
        assert tx.events.list()[0].at == clock.now


def test_detector_state_is_replaced_whole(db: Database) -> None:
    with db.transaction() as tx:
        assert tx.detectors.load("reward") is None
        tx.detectors.save("reward", {"mean": 0.5, "old": 1})
        tx.detectors.save("reward", {"mean": 0.25})
        assert tx.detectors.load("reward") == {"mean": 0.25}


def test_a_process_is_alive_while_it_beats(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        tx.processes.beat("learner", 10, "a", {"step": 1})
        clock.advance(5)
        tx.processes.beat("api", 11, "b")
        assert [p.name for p in tx.processes.alive(within_s=5)] == ["api", "learner"]
        assert [p.name for p in tx.processes.alive(within_s=4)] == ["api"]
        tx.processes.beat("learner", 12, "c")
        learner = tx.processes.get("learner")
        assert learner is not None
        assert (learner.pid, learner.incarnation, learner.info, learner.at) == (12, "c", {}, clock.now)


def test_a_lease_has_one_holder_until_it_is_released_or_expires(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        assert tx.leases.acquire("swap", "a", ttl_s=10)
        assert not tx.leases.acquire("swap", "b", ttl_s=10)
        assert not tx.leases.release("swap", "b")
        clock.advance(9)
        assert tx.leases.acquire("swap", "a", ttl_s=10)
        clock.advance(9)
        assert not tx.leases.acquire("swap", "b", ttl_s=10)
        clock.advance(1)
        assert tx.leases.holder("swap") is None
        assert tx.leases.acquire("swap", "b", ttl_s=10)
        assert tx.leases.holder("swap") == "b"
        assert tx.leases.release("swap", "b")
        assert tx.leases.acquire("swap", "a", ttl_s=10)


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_authenticates_by_its_secret_until_it_is_revoked(db: Database) -> None:
    with db.transaction() as tx:
        key, secret = tx.keys.create(TENANT, "ci", {Scope.AGENT, Scope.OPERATOR})
        _, other = tx.keys.create(TENANT, "ci", {Scope.ADMIN})
    with db.transaction() as tx:
        assert tx.keys.authenticate(secret) == key
        assert key.scopes == {Scope.AGENT, Scope.OPERATOR}
        for wrong in (secret[:-1], secret + "x", secret[:-4] + "AAAA", "", "oa_", "oa_x_y", "\u00e9" * 50, "a" * 5000):
            assert tx.keys.authenticate(wrong) is None
        with pytest.raises(NotFound):
            tx.keys.revoke("rival", key.id)
        tx.keys.revoke(TENANT, key.id)
        tx.keys.revoke(TENANT, key.id)
        assert tx.keys.authenticate(secret) is None
        assert tx.keys.authenticate(other) is not None
        assert [k.revoked_at is None for k in tx.keys.list(TENANT)] == [False, True]


def test_a_rotated_key_has_two_secrets_for_the_overlap_and_one_after_it(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        key, first = tx.keys.create(TENANT, "ci", {Scope.AGENT})
        rotated, second = tx.keys.rotate(TENANT, key.id, overlap_s=10)
        assert (rotated.id, rotated.old_until) == (key.id, clock.now + 10)
        assert {tx.keys.authenticate(secret).id for secret in (first, second)} == {key.id}  # type: ignore[union-attr]
        clock.advance(10)
        assert tx.keys.authenticate(first) is None
        assert tx.keys.authenticate(second) is not None
        _, third = tx.keys.rotate(TENANT, key.id, overlap_s=10)
        _, fourth = tx.keys.rotate(TENANT, key.id, overlap_s=10)
        assert [tx.keys.authenticate(s) is not None for s in (second, third, fourth)] == [False, True, True]
        with pytest.raises(NotFound):
            tx.keys.rotate("rival", key.id, overlap_s=10)
        tx.keys.revoke(TENANT, key.id)
        assert [tx.keys.authenticate(s) for s in (third, fourth)] == [None, None]
        with pytest.raises(Conflict, match="revoked"):
            tx.keys.rotate(TENANT, key.id, overlap_s=10)


def test_a_key_expires_on_time_and_its_use_is_written_once_a_minute(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        key, secret = tx.keys.create(TENANT, "ci", {Scope.AGENT}, expires_in_s=100)
        used_at = clock.now
        for seconds in (0, 59):
            clock.advance(seconds)
            tx.keys.touch(key.id)
            assert tx.keys.list(TENANT)[0].last_used_at == used_at
        clock.advance(1)
        tx.keys.touch(key.id)
        assert tx.keys.list(TENANT)[0].last_used_at == used_at + 60
        clock.advance(39)
        assert tx.keys.authenticate(secret) is not None
        clock.advance(1)
        assert tx.keys.authenticate(secret) is None


def test_the_tokens_of_a_key_are_those_of_its_turns_since_then(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        before = clock.now
        for key_id in ("key_a", "key_a", "key_b"):
            new = EpisodeNew(TENANT, "bug_repair", "train-1", "train", sampling=Sampling(), key_id=key_id)
            tx.episodes.add_turn(tx.episodes.create(new), make_turn(num_tokens=6))  # 4 of prompt, 3 of observation
            clock.advance(10)
        assert tx.keys.num_tokens("key_a", since=before) == 20
        assert tx.keys.num_tokens("key_a", since=before + 10) == 10
        assert tx.keys.num_tokens("key_b", since=before + 30) == 0
        assert tx.keys.num_tokens("nobody", since=before) == 0


def test_the_database_never_holds_a_secret(db: Database) -> None:
    with db.transaction() as tx:
        _, secret = tx.keys.create(TENANT, "ci", {Scope.ADMIN})
    with db.reading() as tx:
        stored = str(tx.connection.exec_driver_sql("SELECT * FROM api_keys").all())
    assert secret not in stored
    assert secret.split("_", 2)[2] not in stored
    assert len(secret.split("_", 2)[2]) == 43  # 32 random bytes in base64url


def test_a_key_without_scope_or_with_an_unknown_one_is_not_made(db: Database) -> None:
    with db.transaction() as tx:
        with pytest.raises(BadInput, match="scope"):
            tx.keys.create(TENANT, "ci", [])
        with pytest.raises(ValueError, match="root"):
            tx.keys.create(TENANT, "ci", ["root"])  # type: ignore[list-item]
        assert tx.keys.list(TENANT) == []


# --- idempotency (C22) ----------------------------------------------------------------------------------------------


def test_a_twin_waits_and_a_repeat_gets_the_first_answer(db: Database) -> None:
    with db.transaction() as tx:
        assert tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "h1") == Fresh()
    with db.transaction() as tx:
        assert isinstance(tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "h1"), Running)
    with db.transaction() as tx:
        tx.idempotency.finish(TENANT, "k1", 201, {"id": "ep_1"})
    with db.transaction() as tx:
        assert tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "h1") == Done(201, {"id": "ep_1"})
        with pytest.raises(Conflict):
            tx.idempotency.finish(TENANT, "k1", 500, None)


def test_another_body_or_route_is_a_mismatch_and_another_tenant_is_not(db: Database) -> None:
    with db.transaction() as tx:
        tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "h1")
        assert tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", "h2") == Mismatch("POST /v1/episodes")
        assert tx.idempotency.begin(TENANT, "k1", "POST /v1/changes", "h1") == Mismatch("POST /v1/episodes")
        assert tx.idempotency.begin("rival", "k1", "POST /v1/episodes", "h2") == Fresh()


def test_a_key_that_is_renewed_stays_taken_beyond_its_first_lease(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        tx.idempotency.begin(TENANT, "k1", "r", "h", lease_s=30)
        clock.advance(29)
        tx.idempotency.renew(TENANT, "k1", lease_s=30)
        clock.advance(29)
        assert tx.idempotency.begin(TENANT, "k1", "r", "h") == Running(1.0)
        clock.advance(1)
        assert tx.idempotency.begin(TENANT, "k1", "r", "h") == Fresh()
        tx.idempotency.finish(TENANT, "k1", 200, {})
        tx.idempotency.renew(TENANT, "k1")
        tx.idempotency.renew(TENANT, "unknown")
        assert tx.idempotency.begin(TENANT, "k1", "r", "h") == Done(200, {})
        assert tx.idempotency.begin(TENANT, "unknown", "r", "h") == Fresh()


def test_a_key_is_free_again_when_its_handler_failed_or_died(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        tx.idempotency.begin(TENANT, "k1", "r", "h")
        tx.idempotency.release(TENANT, "k1")
        assert tx.idempotency.begin(TENANT, "k1", "r", "h", lease_s=30) == Fresh()
        clock.advance(29)
        assert tx.idempotency.begin(TENANT, "k1", "r", "h") == Running(1.0)
        clock.advance(1)
        assert tx.idempotency.begin(TENANT, "k1", "r", "h", lease_s=30) == Fresh()
        assert isinstance(tx.idempotency.begin(TENANT, "k1", "r", "h"), Running)


def test_an_answer_outlives_the_row_it_speaks_of_and_its_release(db: Database) -> None:
    episode_id = graded_episode(db)
    with db.transaction() as tx:
        tx.idempotency.begin(TENANT, "k1", "r", "h")
        tx.idempotency.finish(TENANT, "k1", 201, {"id": episode_id})
        tx.episodes.erase(TENANT, episode_id)
        tx.idempotency.release(TENANT, "k1")
        assert tx.idempotency.begin(TENANT, "k1", "r", "h") == Done(201, {"id": episode_id})


def test_old_answers_are_pruned_and_running_ones_stay(db: Database, clock: ManualClock) -> None:
    with db.transaction() as tx:
        tx.idempotency.begin(TENANT, "old", "r", "h", lease_s=1)
        tx.idempotency.begin(TENANT, "running", "r", "h", lease_s=1000)
        clock.advance(100)
        tx.idempotency.begin(TENANT, "new", "r", "h", lease_s=1)
        assert tx.idempotency.prune(before=clock.now - 50) == 1
        assert tx.idempotency.begin(TENANT, "old", "r", "h") == Fresh()


# --- success over time ----------------------------------------------------------------------------------------------


def test_the_success_series_is_in_order_of_finishing_and_survives_training(db: Database, clock: ManualClock) -> None:
    ids = []
    for reward in (1.0, -1.0, 0.5):
        clock.advance(1)
        ids.append(graded_episode(db, versions=(2, 3), reward=reward))
    finished_episode(db)
    graded_episode(db, split="heldout")
    with db.transaction() as tx:
        tx.episodes.drop(ids[0], "stale:9")
        points = tx.episodes.success_series("bug_repair", tenant_id=TENANT, split="train")
        assert [p.episode_id for p in points] == ids
        assert [(p.reward, p.is_success) for p in points] == [(1.0, True), (-1.0, False), (0.5, True)]
        assert {(p.oldest_version, p.newest_version, p.num_tool_errors) for p in points} == {(2, 3, 1)}
        after = (points[0].finished_at, points[0].episode_id)
        rest = tx.episodes.success_series("bug_repair", split="train", after=after, limit=1)
        assert [p.episode_id for p in rest] == [ids[1]]
        assert len(tx.episodes.success_series("bug_repair", since=clock.now)) == 2
        assert tx.episodes.success_series("other") == []


def test_buckets_add_up_consecutive_episodes(db: Database, clock: ManualClock) -> None:
    for reward in (1.0, -1.0, 0.5, 0.25, -0.25):
        clock.advance(1)
        graded_episode(db, reward=reward)
    with db.reading() as tx:
        buckets = tx.episodes.success_buckets("bug_repair", 2)
        with pytest.raises(BadInput, match="size"):
            tx.episodes.success_buckets("bug_repair", 0)
    assert [(b.index, b.num_episodes, b.num_success, b.mean_reward) for b in buckets] == [
        (0, 2, 1, 0.0),
        (1, 2, 2, 0.375),
        (2, 1, 0, -0.25),
    ]
    assert [b.num_tool_errors for b in buckets] == [2, 2, 1]
    assert buckets[-1].last_finished_at == clock.now


def test_tasks_given_with_a_request_are_in_no_success_series(db: Database) -> None:
    with db.transaction() as tx:
        for task_id in ("train-1", "inline-0123456789abcdef"):
            episode_id = tx.episodes.create(EpisodeNew(TENANT, "bug_repair", task_id, "train"))
            tx.episodes.add_turn(episode_id, make_turn())
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({}))
            tx.episodes.grade(episode_id, Verdict(1.0, True))
        assert len(tx.episodes.success_series("bug_repair")) == 1
        assert [bucket.num_episodes for bucket in tx.episodes.success_buckets("bug_repair", 2)] == [1]
        assert tx.episodes.queue().num_ready == 2


# --- grading --------------------------------------------------------------------------------------------------------


def test_a_finished_episode_is_claimed_by_one_grader_at_a_time(db: Database, clock: ManualClock) -> None:
    """C23: a second delivery gets nothing while the first works; a dead worker's claim ends with its lease."""
    episode_id = finished_episode(db)
    with db.transaction() as tx:
        (claim,) = tx.episodes.claim_ungraded("w1", lease_s=10, episode_id=episode_id)
        assert (claim.episode_id, claim.attempt, claim.expires_at) == (episode_id, 1, clock.now + 10)
        assert claim.artifact is not None
    with db.transaction() as tx:
        assert tx.episodes.claim_ungraded("w2", lease_s=10, limit=5) == []
    clock.advance(10)
    with db.transaction() as tx:
        (claim,) = tx.episodes.claim_ungraded("w2", lease_s=10)
        assert claim.attempt == 2
        tx.episodes.release_grading(episode_id, "w1")
        assert tx.episodes.claim_ungraded("w3", lease_s=10) == []
        tx.episodes.release_grading(episode_id, "w2")
        assert len(tx.episodes.claim_ungraded("w3", lease_s=10)) == 1
        tx.episodes.grade(episode_id, Verdict(1.0, True))
    clock.advance(100)
    with db.transaction() as tx:
        assert tx.episodes.claim_ungraded("w4", lease_s=10) == []


def test_claims_are_oldest_first_and_limited(db: Database, clock: ManualClock) -> None:
    ids = []
    for _ in range(3):
        clock.advance(1)
        ids.append(finished_episode(db))
    with db.transaction() as tx:
        assert [c.episode_id for c in tx.episodes.claim_ungraded("w", 10, limit=2)] == ids[:2]
