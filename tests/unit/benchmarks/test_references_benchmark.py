"""The queue that the references benchmark sets up is what it says: batches that several versions sampled."""

import numpy as np

from benchmarks.live_interruption import spans_of
from benchmarks.references import as_of, dealt_to
from online_agent.types import training_episode
from tests.fakes.training_episodes import episode

MASK = [0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0]
EPISODE = dealt_to(episode(range(13), MASK), range(5, 9), "b8")


def test_actions_are_dealt_to_the_versions_in_equal_parts():
    assert EPISODE.versions.tolist() == [-1, -1, 5, 5, 6, -1, 6, -1, 7, 7, 8, 8, -1]


def test_an_episode_as_of_a_version_ends_with_that_versions_last_token():
    assert as_of(EPISODE, 6).versions.tolist() == [-1, -1, 5, 5, 6, -1, 6]
    assert as_of(EPISODE, 9).token_ids.tolist() == list(range(12))
    assert len(as_of(EPISODE, 4).token_ids) == 0


def test_an_episode_is_stored_as_it_is():
    stored = training_episode("e", spans_of(EPISODE), EPISODE.reward, EPISODE.temperature)
    for field in ("token_ids", "action_mask", "logprobs", "versions"):
        assert np.array_equal(getattr(stored, field), getattr(EPISODE, field)), field
