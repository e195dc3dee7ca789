"""The learner's life on a real database, a real weights directory and a real trainer."""

import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

from online_agent.errors import BrokerUnavailable, ConfigError, StorageFull
from online_agent.learner.report import METRIC_KEYS
from online_agent.learner.stages import Stage
from online_agent.learner.trainer import PolicyTrainer
from online_agent.promotion.retention import prune_versions
from online_agent.store.records import VersionNew
from online_agent.store.repositories.steps import StepRepository
from online_agent.types import EpisodeStatus, StepStatus, VersionOrigin, VersionState
from online_agent.weights.tensors import check_finite
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.episodes import graded_episode
from tests.fakes.learner import BATCH, LEARNER, Workplace, new_workplace, spoil_gradient
from tests.fakes.tiny_model import write_tiny_model

pytestmark = SILENCED
CRITIC_UPDATES = 2


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("seed"), scale=0.05)


@pytest.fixture
def place(tmp_path, model_dir):
    made = new_workplace(tmp_path, model_dir)
    yield made
    made.db.close()


def started(place: Workplace, **hooks):
    loop = place.loop(**hooks)
    loop.start()
    return loop


def roll_back(place: Workplace, target: int) -> int:
    """What promotion does, without an engine."""
    with place.db.transaction() as tx:
        version = tx.weights.next_version()
    copy = place.weights.copy_as(target, version)
    with place.db.transaction() as tx:
        tx.control.fence_out(target)
        tx.weights.insert(VersionNew(version, VersionOrigin.ROLLBACK, target, content_hash=copy.manifest.content_hash))
    return version


def events(place: Workplace, kind: str):
    with place.db.reading() as tx:
        return [event.data for event in tx.events.list({kind})]


def statuses(place: Workplace) -> dict[EpisodeStatus, int]:
    with place.db.reading() as tx:
        return {status: n for status, n in tx.episodes.counts_by_status().items() if n}


def test_a_step_trains_its_episodes_once_and_leaves_a_candidate(place):
    stages, announced = [], []
    loop = started(place, on_committed=announced.append, on_stage=stages.append)
    ids = place.add_episodes(BATCH)

    assert loop.run_once()
    assert not loop.run_once()

    with place.db.reading() as tx:
        version = tx.weights.get(loop.version)
        step = tx.steps.last(1)[0]
        made_of = [episode.episode_id for episode in tx.weights.episodes_of(loop.version)]
        assert tx.control.get().current_version == loop.version
    assert stages == list(Stage)
    assert announced == [loop.version] == [1]
    assert (version.origin, version.state, version.parent) == (VersionOrigin.STEP, VersionState.CANDIDATE, 0)
    assert version.content_hash == place.weights.open(1).manifest.content_hash
    assert (step.status, tuple(step.metrics)) == (StepStatus.COMMITTED, METRIC_KEYS)
    assert sorted(made_of) == sorted(ids)
    assert statuses(place) == {EpisodeStatus.TRAINED: BATCH}


def test_too_few_episodes_are_left_waiting(place):
    loop = started(place)
    place.add_episodes(BATCH - 1)

    assert not loop.run_once()
    assert statuses(place) == {EpisodeStatus.GRADED: BATCH - 1}


def test_warm_up_publishes_the_parents_tensors_and_the_next_step_new_ones(place):
    loop = started(place)
    place.add_episodes(2 * BATCH)
    loop.run_once()
    loop.run_once()

    warmed_up, trained = (place.weights.open(v).manifest.content_hash for v in (1, 2))
    assert trained != warmed_up
    seed = load_file(place.weights.open(0).serving_dir / "model.safetensors")
    after_warm_up = load_file(place.weights.open(1).serving_dir / "model.safetensors")
    assert all(np.array_equal(after_warm_up[name], tensor) for name, tensor in seed.items())
    with place.db.reading() as tx:
        steps = tx.steps.last(2)
    assert [s.metrics["actor/updates"] for s in steps] == [1, 0]


def test_a_learner_that_starts_again_goes_on_where_the_last_one_stopped(place):
    one = started(place)
    place.add_episodes(BATCH)
    one.run_once()

    other = started(place)
    place.add_episodes(BATCH)
    other.run_once()

    assert other.version == 2
    with place.db.reading() as tx:
        assert tx.steps.last(1)[0].metrics["critic/updates"] == 2 * CRITIC_UPDATES


def test_what_a_killed_learner_had_reserved_waits_again_after_the_next_start(place):
    class KilledError(Exception):
        pass

    def kill(stage):
        if stage is Stage.TRAINED:
            raise KilledError

    loop = started(place, on_stage=kill)
    place.add_episodes(BATCH)
    with pytest.raises(KilledError):
        loop.run_once()
    assert statuses(place) == {EpisodeStatus.RESERVED: BATCH}

    again = started(place)

    assert statuses(place) == {EpisodeStatus.GRADED: BATCH}
    assert again.run_once()
    assert statuses(place) == {EpisodeStatus.TRAINED: BATCH}


@pytest.mark.parametrize("stage", [Stage.RESERVED, Stage.TRAINED, Stage.WRITTEN, Stage.RENAMED])
def test_a_rollback_in_the_middle_of_a_step_discards_it(place, stage):
    """C31: the finished step is not published; the next version has the rolled-back one as parent."""
    armed, rolled_back = threading.Event(), []

    def interrupt(reached):
        if reached is stage and armed.is_set():
            armed.clear()
            rolled_back.append(roll_back(place, 1))

    loop = started(place, on_stage=interrupt)
    place.add_episodes(3 * BATCH)
    loop.run_once()
    loop.run_once()
    armed.set()
    loop.run_once()

    assert [loop.version] == rolled_back
    assert statuses(place) == {EpisodeStatus.TRAINED: 2 * BATCH, EpisodeStatus.GRADED: BATCH}
    assert place.weights.open(loop.version).manifest.content_hash == place.weights.open(1).manifest.content_hash
    assert [e["cause"] for e in events(place, "ewma_reset")] == ["rollback"]
    loop.run_once()
    with place.db.reading() as tx:
        assert [tx.weights.get(loop.version).parent] == rolled_back
        assert tx.episodes.trained_twice() == 0
    assert statuses(place) == {EpisodeStatus.TRAINED: 3 * BATCH}


def test_after_a_rollback_the_trainer_is_that_of_the_target(place):
    """Counters, weights and moments of version 1 come back; the EWMA reference starts anew from them."""
    loop = started(place)
    place.add_episodes(3 * BATCH)
    for _ in range(3):
        loop.run_once()
    version = roll_back(place, 1)

    loop.run_once()

    assert loop.version == version
    place.add_episodes(BATCH, version=version)
    loop.run_once()
    with place.db.reading() as tx:
        metrics = tx.steps.last(1)[0].metrics
    assert (metrics["actor/updates"], metrics["critic/updates"]) == (1, 2 * CRITIC_UPDATES)


def test_a_paused_learner_leaves_the_queue_alone_until_it_is_resumed(place):
    loop = started(place)
    place.add_episodes(BATCH)
    with place.db.transaction() as tx:
        tx.control.pause()
    assert not loop.run_once()

    with place.db.transaction() as tx:
        tx.control.resume()
    assert loop.run_once()


def test_a_requested_reset_is_an_event_of_the_next_version(place):
    loop = started(place)
    place.add_episodes(2 * BATCH)
    with place.db.transaction() as tx:
        tx.control.request_reset("environment_change:chg_1")

    loop.run_once()
    loop.run_once()

    assert events(place, "ewma_reset") == [{"cause": "environment_change:chg_1", "active_share": None}]
    with place.db.reading() as tx:
        assert tx.control.get().reset_request is None


def test_a_full_disk_pauses_publishing_and_loses_nothing(place, monkeypatch):
    loop = started(place)
    place.add_episodes(BATCH)

    def full(num_bytes):
        raise StorageFull("0 bytes are free")

    with monkeypatch.context() as patched:
        patched.setattr(place.weights, "require_free", full)
        assert not loop.run_once()
        assert not loop.run_once()
    assert statuses(place) == {EpisodeStatus.GRADED: BATCH}
    assert events(place, "publishing_paused") == [{"reason": "0 bytes are free"}]

    assert loop.run_once()
    assert len(events(place, "publishing_resumed")) == 1


@pytest.mark.parametrize(
    ("owner", "method"), [(PolicyTrainer, "export"), (StepRepository, "commit")], ids=["weights", "database"]
)
def test_a_disk_that_fills_up_after_training_puts_the_trainer_back(place, monkeypatch, owner, method):
    """The step was trained in memory; its episodes wait again and are trained once, from the old weights."""
    loop = started(place)
    place.add_episodes(BATCH)

    def full(*_):
        raise StorageFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, full)
        assert not loop.run_once()
    assert statuses(place) == {EpisodeStatus.GRADED: BATCH}
    assert loop.version == 0

    assert loop.run_once()
    with place.db.reading() as tx:
        committed = tx.steps.last(1)[0]
        assert tx.episodes.trained_twice() == 0
    assert committed.metrics["critic/updates"] == CRITIC_UPDATES
    assert (committed.parent_version, loop.version) == (0, 2), "a number that was taken is not used again"


def test_a_skipped_step_is_a_row_with_its_reason_and_its_episodes_are_dropped(tmp_path, model_dir):
    place = new_workplace(tmp_path, model_dir, LEARNER.model_copy(update={"max_skipped_in_a_row": 2}))
    loop = started(place)
    for _ in range(2 * BATCH):
        graded_episode(place.db)  # log-probs the tiny model could not have given

    assert loop.run_once()
    with place.db.reading() as tx:
        step = tx.steps.last(1)[0]
        assert not tx.control.get().is_paused
    assert step.status is StepStatus.SKIPPED
    assert step.reason.startswith("trust region masks 1.000")
    assert tuple(step.metrics) == METRIC_KEYS
    assert loop.version == 0
    assert statuses(place) == {EpisodeStatus.DROPPED: BATCH, EpisodeStatus.GRADED: BATCH}

    loop.run_once()
    with place.db.reading() as tx:
        assert tx.control.get().is_paused
    assert events(place, "learner_paused") == [{"cause": "2 steps skipped in a row"}]
    place.db.close()


def serve(place: Workplace, version: int) -> None:
    """What promotion does, without an engine; then the retention of the last three."""
    with place.db.transaction() as tx:
        assert tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.VERIFIED)
        assert tx.weights.move(version, {VersionState.VERIFIED}, VersionState.SERVING)
    prune_versions(place.db, place.weights, 3)


@pytest.mark.slow
def test_c32_a_nan_at_step_10_of_20_is_skipped_and_retention_keeps_only_healthy_versions(place):
    loop = started(place)
    for number in range(1, 21):
        place.add_episodes(BATCH, version=loop.version)
        hook = spoil_gradient(loop._trainer.actor.network) if number == 10 else None
        before = loop.version
        loop.run_once()
        if hook is None:
            serve(place, loop.version)
        else:
            hook.remove()
            assert loop.version == before == 9

    with place.db.reading() as tx:
        steps = tx.steps.last(20)[::-1]
        serving = tx.weights.serving()
    assert [step.step for step in steps if step.status is StepStatus.SKIPPED] == [10]
    assert steps[9].reason == "actor gradient is not finite"
    assert (serving.version, serving.parent) == (19, 18)
    kept = place.weights.versions()
    assert kept == [16, 17, 18, 19], "what serves and the three before it as targets of a rollback"
    for version in kept:
        for file in place.weights.open(version).path.glob("*/*.safetensors"):
            check_finite(file)


def test_one_stale_episode_is_dropped_alone(place):
    loop = started(place)
    with place.db.transaction() as tx:
        for _ in range(9):
            version = tx.weights.next_version()
            tx.weights.insert(VersionNew(version, VersionOrigin.ROLLBACK, 0))
    place.weights.copy_as(0, version)
    stale = graded_episode(place.db, [0])
    place.add_episodes(BATCH, version=1)

    assert loop.run_once()

    with place.db.reading() as tx:
        assert tx.episodes.drops_by_reason() == {"stale:9": 1}
        assert tx.episodes.get("acme", stale).status is EpisodeStatus.DROPPED
        assert tx.steps.last(1)[0].metrics["staleness/histogram"] == [0] * 8 + [BATCH]


def test_a_broker_that_is_down_delays_the_announcement_only(place):
    def down(version):
        raise BrokerUnavailable("nobody there")

    loop = started(place, on_committed=down)
    place.add_episodes(BATCH)

    assert loop.run_once()
    assert statuses(place) == {EpisodeStatus.TRAINED: BATCH}


def test_without_any_version_the_learner_says_what_to_do(place):
    loop = place.loop()
    with place.db.transaction() as tx:
        tx.control.set_current_version(None)

    with pytest.raises(ConfigError, match="import a seed model first"):
        loop.start()


def test_run_stops_when_asked_and_finishes_what_is_due_before(place):
    stop = threading.Event()
    loop = started(place, on_stage=lambda stage: stop.set())
    place.add_episodes(2 * BATCH)

    loop.run(stop)

    assert statuses(place) == {EpisodeStatus.TRAINED: BATCH, EpisodeStatus.GRADED: BATCH}


def test_the_learner_says_that_it_lives(place):
    started(place)

    with place.db.reading() as tx:
        assert tx.processes.get("learner").info == {"version": 0}
