"""kill -9 of the learner at each of the six points of a step: every episode is trained once or back in the queue."""

import multiprocessing
import signal

import pytest

from online_agent.errors import CorruptVersion
from online_agent.learner.stages import Stage
from online_agent.types import EpisodeStatus, StepStatus
from tests.fakes.learner import BATCH, live_until, new_workplace, open_workplace
from tests.fakes.tiny_model import write_tiny_model

LIFE_TIMEOUT_S = 100.0
# The learner and what DeepSpeed and transformers would import at their first use.
PRELOADED = [
    "tests.fakes.learner",
    "deepspeed.module_inject",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.muon.original_muon",
    "transformers.models.qwen3.modeling_qwen3",
]
HAS_HAPPENED = {Stage.COMMITTED, Stage.ANNOUNCED}


@pytest.fixture(scope="module")
def processes():
    """Forks of a server that has imported DeepSpeed already: each life is a process of its own and starts quickly."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DS_ACCELERATOR", "cpu")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        yield context


def live(processes, data_dir, stage):
    """The exit code of one life."""
    process = processes.Process(target=live_until, args=(str(data_dir), stage))
    process.start()
    process.join(LIFE_TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
    return process.exitcode


def counts(place):
    with place.db.reading() as tx:
        return {status: n for status, n in tx.episodes.counts_by_status().items() if n}


def committed(place):
    """Versions and the episodes of each, by committed step, oldest first."""
    with place.db.reading() as tx:
        steps = [s for s in reversed(tx.steps.last(50)) if s.status is StepStatus.COMMITTED]
        return [(s.version, [e.episode_id for e in tx.weights.episodes_of(s.version)]) for s in steps]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_learner_killed_at_every_point_of_a_step_trains_each_episode_once(processes, tmp_path):
    place = new_workplace(tmp_path, write_tiny_model(tmp_path / "model", scale=0.05))
    num_trained, added = 0, []
    for stage in Stage:
        added += place.add_episodes(BATCH if num_trained * BATCH == len(added) else 0)
        waiting = len(added) - num_trained * BATCH

        assert live(processes, tmp_path, stage) == -signal.SIGKILL

        num_trained += stage in HAS_HAPPENED
        expected = {
            EpisodeStatus.TRAINED: num_trained * BATCH,
            EpisodeStatus.RESERVED: 0 if stage in HAS_HAPPENED else waiting,
        }
        assert counts(place) == {status: n for status, n in expected.items() if n}, stage

    added += place.add_episodes(2 * BATCH)
    assert live(processes, tmp_path, None) == 0

    assert counts(place) == {EpisodeStatus.TRAINED: len(added)}
    steps = committed(place)
    assert sorted(episode for _, episodes in steps for episode in episodes) == sorted(added)
    versions = [version for version, _ in steps]
    assert versions == sorted(set(versions))
    with place.db.reading() as tx:
        assert tx.episodes.trained_twice() == 0
        assert tx.control.get().current_version == versions[-1]
        parents = [tx.weights.get(v).parent for v in versions]
        restored = [event.version for event in tx.events.list({"learner_restored"})]
    assert parents == [0, *versions[:-1]]
    assert set(restored) <= {0, *versions}
    for version in versions:
        place.weights.open(version)
    assert not list(tmp_path.glob("**/*.tmp"))
    place.db.close()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_version_cut_off_half_way_is_never_loaded(processes, tmp_path):
    """C16: version 1 complete, version 2 without STABLE and with half its weights: the next life goes on from 1."""
    place = new_workplace(tmp_path, write_tiny_model(tmp_path / "model", scale=0.05))
    place.add_episodes(BATCH)
    assert live(processes, tmp_path, Stage.ANNOUNCED) == -signal.SIGKILL
    place.add_episodes(BATCH)
    assert live(processes, tmp_path, Stage.WRITTEN) == -signal.SIGKILL
    half = next(tmp_path.glob("weights/*.tmp")) / "serving" / "model.safetensors"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    half.parent.parent.rename(tmp_path / "weights" / "v000002")
    with pytest.raises(CorruptVersion):
        place.weights.open(2)

    assert live(processes, tmp_path, None) == 0

    again = open_workplace(tmp_path)
    (_, _), (version, _) = committed(again)
    with again.db.reading() as tx:
        assert tx.weights.get(version).parent == 1
        assert [e.version for e in tx.events.list({"learner_restored"})] == [0, 1, 1]
    assert counts(again) == {EpisodeStatus.TRAINED: 2 * BATCH}
    again.db.close()
    place.db.close()
