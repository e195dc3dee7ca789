"""Clients' episodes through the real learner: every segment is trained, each action once."""

import pytest

from online_agent.store.records import FeedbackNew
from online_agent.types import EpisodeStatus, StopReason
from tests.fakes.client_episodes import answer, open_client
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.episodes import TENANT
from tests.fakes.learner import BATCH, LIKELY_LOGPROB, Workplace, new_workplace
from tests.fakes.tiny_model import write_tiny_model

pytestmark = SILENCED


@pytest.fixture
def place(tmp_path):
    made = new_workplace(tmp_path, write_tiny_model(tmp_path / "seed", scale=0.05))
    yield made
    made.db.close()


def rewarded_episode(place: Workplace, reward: float) -> str:
    """Three answers: two that continue each other, and one to a history of its own."""
    episode_id = open_client(place.db)
    answer(place.db, episode_id, "p", logprob=LIKELY_LOGPROB)
    answer(place.db, episode_id, "q", parent=0, parent_completion="c-p", logprob=LIKELY_LOGPROB)
    answer(place.db, episode_id, "r", num_tokens=5, logprob=LIKELY_LOGPROB)
    with place.db.transaction() as tx:
        tx.clients.close(episode_id, StopReason.CLOSED)
        tx.feedback.add(TENANT, episode_id, FeedbackNew("ann", reward))
        tx.clients.settle(episode_id)
    return episode_id


def test_a_step_trains_all_segments_of_its_episodes_and_every_kept_token_once(place):
    loop = place.loop()
    loop.start()
    ids = [rewarded_episode(place, float(n % 2)) for n in range(BATCH)]

    assert loop.run_once()

    with place.db.reading() as tx:
        step = tx.steps.last(1)[0]
        records = [tx.episodes.get(TENANT, episode_id) for episode_id in ids]
        kept = sum(tx.clients.get(episode_id).num_kept_tokens for episode_id in ids)
        assert sorted(row.episode_id for row in tx.weights.episodes_of(loop.version)) == sorted(ids)
        assert tx.episodes.trained_twice() == 0
    assert (step.num_episodes, step.metrics["tokens/total"]) == (BATCH, kept)
    assert {record.status for record in records} == {EpisodeStatus.TRAINED}
    assert not loop.run_once()
