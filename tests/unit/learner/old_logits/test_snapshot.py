"""Each token scored under the version that sampled it, with the versions loaded again from disk."""

import shutil

import numpy as np
import pytest

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.scoring import Scorer, read_weights
from online_agent.learner.old_logits.snapshot import SnapshotRoute, num_missing
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.weights.store import WeightStore
from tests.fakes.policy_versions import VERSIONS, log_probs_in_float64, mixed_episodes

ROOMY = 10**9


def test_every_token_is_scored_under_the_version_that_sampled_it(store, scorer):
    episodes = mixed_episodes(6, VERSIONS)
    assert any(len(set(e.versions[e.action_mask])) == 3 for e in episodes)

    filled = SnapshotRoute(scorer, VersionWindow(store, ROOMY)).fill(episodes, version=5)

    for before, after in zip(episodes, filled, strict=True):
        expected = log_probs_in_float64(store, before)
        assert after.old_logprobs.dtype == np.float32
        assert np.array_equal(np.isnan(after.old_logprobs), ~before.action_mask)
        assert np.nanmax(np.abs(after.old_logprobs - expected)) < 1e-5
        assert np.array_equal(after.token_ids, before.token_ids)


def test_the_versions_differ_so_that_a_mix_up_would_show(store, scorer):
    (episode,) = mixed_episodes(1, [3])
    route = SnapshotRoute(scorer, VersionWindow(store, ROOMY))
    (right,) = route.fill([episode], version=5)
    (wrong,) = route.fill(mixed_episodes(1, [4]), version=5)

    assert np.nanmax(np.abs(right.old_logprobs - wrong.old_logprobs)) > 0.05


def test_the_cut_into_micro_batches_does_not_show(store, scorer):
    episodes = mixed_episodes(6, VERSIONS)
    one_by_one = Scorer(store.open(3).serving_dir, LearnerSettings(micro_batch_tokens=1))
    route = SnapshotRoute(one_by_one, VersionWindow(store, ROOMY))

    together = SnapshotRoute(scorer, VersionWindow(store, ROOMY)).fill(episodes, version=5)
    for a, b in zip(together, route.fill(episodes, version=5), strict=True):
        assert np.nanmax(np.abs(a.old_logprobs - b.old_logprobs)) < 1e-5


def test_tokens_of_a_version_that_is_gone_stay_unscored_and_are_counted(tmp_path, store, scorer):
    shutil.copytree(store.root, tmp_path / "weights")
    poorer = WeightStore(tmp_path / "weights")
    shutil.rmtree(poorer.path(3))
    episodes = mixed_episodes(4, VERSIONS)
    num_of_3 = sum(int((e.versions == 3).sum()) for e in episodes)
    route = SnapshotRoute(scorer, VersionWindow(poorer, ROOMY))

    filled = route.fill(episodes, version=5)

    for episode in filled:
        assert np.array_equal(np.isnan(episode.old_logprobs), ~episode.action_mask | (episode.versions == 3))
    assert route.cost().missing_tokens == num_missing(filled) == num_of_3 > 0


def test_weights_of_another_shape_count_as_gone(tmp_path, store, scorer):
    class OtherShape(VersionWindow):
        def weights_of(self, version):
            return {name: tensor[:1] for name, tensor in super().weights_of(version).items()}

    (filled,) = SnapshotRoute(scorer, OtherShape(store, ROOMY)).fill(mixed_episodes(1, [3]), version=5)
    assert num_missing([filled]) == filled.num_action_tokens


def test_a_batch_without_episodes_is_filled_with_nothing(store, scorer):
    route = SnapshotRoute(scorer, VersionWindow(store, ROOMY))
    assert route.fill([], version=5) == []
    assert route.cost().missing_tokens == 0


@pytest.mark.parametrize(("room", "held"), [(0, [5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_as_many_versions_stay_in_memory_as_the_setting_allows(store, room, held):
    size = sum(t.numel() * 4 for t in read_weights(store.open(3).serving_dir).values())
    window = VersionWindow(store, max_bytes=room * size)
    for version in VERSIONS:
        window.weights_of(version)

    assert window.versions == held
    assert window.size_bytes == len(held) * size


def test_a_held_version_is_not_read_again(store):
    class CountingStore(WeightStore):
        opened = 0

        def open(self, version):
            self.opened += 1
            return super().open(version)

    counting = CountingStore(store.root)
    window = VersionWindow(counting, ROOMY)
    for version in (3, 3, 4, 3):
        window.weights_of(version)
    assert counting.opened == 2


def test_the_cost_names_what_the_route_holds(store, scorer):
    route = SnapshotRoute(scorer, VersionWindow(store, ROOMY))
    route.fill(mixed_episodes(2, [3, 4]), version=5)

    cost = route.cost()
    assert cost.bytes == 3 * scorer.size_bytes  # two versions and the network that scores
    assert cost.seconds > 0
    assert cost.paused_seconds == 0
