"""Public agents, unchanged, in front of the real SGLang: whatever a weak model says, what it sampled is trained on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest

from online_agent.config.settings import Settings
from online_agent.config.training import LearnerSettings, WeightsSettings
from online_agent.learner.loop import LearnerLoop
from online_agent.learner.trainer import PolicyTrainer
from online_agent.types import EpisodeStatus
from online_agent.weights.store import WeightStore
from tests.engine_fixtures import RealEngine
from tests.fakes.api import TENANT
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.engine_site import Site, open_site
from tests.sdk_agents.programs import agents_sdk, mini_swe_agent

pytestmark = [pytest.mark.engine, pytest.mark.slow, SILENCED]

EPISODES = ("mini", "sdk")


@pytest.fixture
async def site(tmp_path: Path, real_engine: RealEngine) -> AsyncIterator[Site]:
    async with open_site(tmp_path, real_engine) as opened:
        yield opened


async def use_agents(site: Site, home: Path) -> None:
    """A random model says nothing that an agent understands: one gives up, the other ends with what it has."""
    home.mkdir()
    await mini_swe_agent(site.url, site.key, home, episode="mini", task="print 3")
    ended = orjson.loads((home / "trajectory.json").read_bytes())["info"]["exit_status"]
    assert ended in ("RepeatedFormatError", "LimitsExceeded", "Submitted")
    await agents_sdk(site.url, site.key, home, api="responses", streaming="streamed", episode="sdk", task="print 3")


async def reward_and_close(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.key}"}
    async with httpx.AsyncClient(base_url=site.url, headers=headers, trust_env=False) as client:
        for index, episode in enumerate(EPISODES):
            feedback = {"reward": float(index % 2), "source": "tests"}
            assert (await client.post(f"/v1/episodes/{episode}/feedback", json=feedback)).json()["fate"] == "accepted"
            await client.post(f"/v1/episodes/{episode}/close", json={})


def train_once(site: Site, data_dir: Path) -> None:
    learner = LearnerSettings(batch_episodes=len(EPISODES), critic_warmup_steps=1)
    settings = Settings(data_dir=data_dir, learner=learner, weights=WeightsSettings(min_free_bytes=1))
    weights = WeightStore(settings.weights_dir)
    weights.import_seed(site.real.model_dirs[1], 1)
    trainer = PolicyTrainer(weights.open(1).serving_dir, learner, settings.recipe)
    loop = LearnerLoop(site.world.db, weights, trainer, settings, lambda version: None, lambda stage: None)
    loop.start()
    assert loop.run_once()


async def test_what_agents_sampled_has_the_engines_log_probs_and_is_trained_on(site: Site, tmp_path: Path) -> None:
    await use_agents(site, tmp_path / "home")
    for episode in EPISODES:
        for row in site.rows(episode):
            expected = await site.scored(row)
            np.testing.assert_allclose(row.logprobs[row.action_mask], expected[row.action_mask], atol=2e-3)
    await reward_and_close(site)
    await asyncio.to_thread(train_once, site, tmp_path)
    with site.world.db.reading() as tx:
        found = [tx.clients.find(TENANT, episode) for episode in EPISODES]
        records = [tx.episodes.get(TENANT, client.id) for client in found if client is not None]
        [step] = tx.steps.last(1)
        fates = [feedback.fate for client in found if client for feedback in tx.feedback.of_episode(TENANT, client.id)]
    assert {record.status for record in records} == {EpisodeStatus.TRAINED}
    assert step.metrics["tokens/total"] == sum(client.num_kept_tokens for client in found if client is not None)
    assert set(fates) == {"used"}
