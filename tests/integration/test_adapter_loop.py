"""The learner's life with an adapter on a real engine: three steps are published, and the first is rolled back to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.types import Verdict
from online_agent.config.training import LoraSettings
from online_agent.learner.lora import merged_weights
from online_agent.learner.models import load_causal_lm
from online_agent.promotion.publish import publish
from online_agent.promotion.retention import prune_versions
from online_agent.promotion.rollback import rollback
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.client import new_rid
from online_agent.serving.swap import restore
from online_agent.types import Generation, Sampling, Span, SpanKind, StopReason, VersionState
from online_agent.weights import VersionDir
from tests.adapter_engine_fixtures import AdapterEngine
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.episodes import make_turn, open_episode
from tests.fakes.learner import BATCH, LEARNER, Workplace, new_workplace

pytestmark = [pytest.mark.engine, SILENCED]

PROMPT = np.arange(20, 60, dtype=np.int32)
MAX_GAP = 1e-4
ADAPTED = LEARNER.model_copy(
    update={"actor": "lora", "lora": LoraSettings(rank=4, alpha=8.0), "actor_lr": 3e-3, "critic_warmup_steps": 0}
)


@pytest.fixture
def place(adapter_engine: AdapterEngine, tmp_path: Path) -> Iterator[Workplace]:
    """A database and weights of their own, whose version 0 has the weights that the engine holds."""
    made = new_workplace(tmp_path, adapter_engine.policies.model_dir, ADAPTED)
    yield made
    made.db.close()


@pytest.fixture
async def client(adapter_engine: AdapterEngine, place: Workplace) -> AsyncIterator[AdapterClient]:
    """Version 0 serves; nothing of other tests is loaded under a number that this one will use."""
    async with adapter_engine.client() as client:
        await restore(client, place.weights.open(0), timeout_s=20)
        for version in await client.adapters():
            await client.unload_adapter(version)
        yield client


def gap(version: VersionDir, generation: Generation) -> float:
    """The largest |learner − engine| log-prob under the version's merged weights."""
    model = load_causal_lm(version.serving_dir)
    if version.manifest.base is not None:
        model.load_state_dict(merged_weights(version.serving_dir), strict=False)
    ids = torch.tensor(np.concatenate([PROMPT, generation.token_ids])[None], dtype=torch.long)
    with torch.no_grad():
        logits = model(ids).logits[0, len(PROMPT) - 1 : -1]
    logps = torch.log_softmax(logits, -1).gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
    return float(np.abs(logps - generation.logprobs).max())


def mismatch(place: Workplace) -> float:
    """The largest |learner − engine| log-prob of the last step, as the learner itself measured it."""
    with place.db.reading() as tx:
        return float(tx.steps.last(1)[0].metrics["mismatch/current_version_max_abs_logp"])


async def add_sampled_episodes(place: Workplace, client: AdapterClient) -> None:
    """Episodes of one turn by the version that serves, with the engine's own log-probs, rewarded in turn."""
    for number in range(BATCH):
        generation = await ask(client)
        action = Span(SpanKind.ACTION, 0, generation.token_ids, generation.logprobs, generation.version_runs)
        turn = replace(make_turn(), spans=[Span(SpanKind.PROMPT, 0, PROMPT), action])
        episode_id = open_episode(place.db)
        with place.db.transaction() as tx:
            tx.episodes.add_turn(episode_id, turn)
            tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
            tx.episodes.grade(episode_id, Verdict(float(number % 2), number % 2 > 0))


async def ask(client: AdapterClient) -> Generation:
    return await client.generate(PROMPT, Sampling(1.0, 1.0, 32), [], new_rid())


async def test_three_steps_are_trained_and_served_and_the_first_is_served_again_after_a_rollback(
    place: Workplace, client: AdapterClient
) -> None:
    loop = place.loop()
    loop.start()
    seen = [await ask(client)]
    for version in (1, 2, 3):
        await add_sampled_episodes(place, client)
        assert loop.run_once()
        assert mismatch(place) < MAX_GAP
        row = await publish(place.db, place.weights, client, version)
        assert (row.state, row.state_reason) == (VersionState.SERVING, None)
        seen.append(await ask(client))

    number = await rollback(place.db, place.weights, client, 1, "operator")
    seen.append(await ask(client))

    hashes = [place.weights.open(v).manifest.content_hash for v in range(5)]
    assert number == 4
    assert hashes[4] == hashes[1]
    assert len(set(hashes)) == 4
    for version, generation in enumerate(seen):
        assert [run.version for run in generation.version_runs] == [version]
        assert gap(place.weights.open(version), generation) < MAX_GAP
    assert gap(place.weights.open(1), seen[3]) > 0.01, "three steps move the log-probs"
    assert sorted(await client.adapters()) == [3, 4]

    await add_sampled_episodes(place, client)
    assert loop.run_once()
    assert mismatch(place) < MAX_GAP
    assert (await publish(place.db, place.weights, client, 5)).state is VersionState.SERVING
    assert place.weights.open(5).manifest.parent == 4
    prune_versions(place.db, place.weights, keep_versions=2)
    assert 0 in place.weights.versions(), "the base of those that stay"
