"""The three exact routes on episodes that three versions sampled, with the real protocol between learner and api.

A learner (real trainer, real weights directory) and an api (real interrupter) share a database; the engine is the
scripted fake or the real server. Generations are cut off twice and each goes on under the next version.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from envs.types import Verdict
from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.learner.old_logits.interruption import InterruptionRoute, Patience
from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.old_logits.scoring import Scorer
from online_agent.learner.old_logits.snapshot import SnapshotRoute, num_missing
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.swap import swap
from online_agent.store.records import TurnNew, VersionNew
from online_agent.store.session import Database
from online_agent.types import (
    Generation,
    Sampling,
    Span,
    SpanKind,
    StopReason,
    TrainingEpisode,
    VersionOrigin,
    VersionState,
)
from online_agent.weights.store import WeightStore
from tests.engine_fixtures import RealEngine, serve_first_version
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.engine import ScriptedEngine
from tests.fakes.episodes import open_episode
from tests.fakes.policy_versions import log_probs_in_float64
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE

pytestmark = [SILENCED, pytest.mark.timeout(420)]

VERSIONS = (1, 2, 3)
NUM_EPISODES, PROMPT_TOKENS = 4, 12
S = VersionState


@dataclass
class Place:
    """The parts of the service that take part."""

    db: Database
    weights: WeightStore
    client: EngineClient
    interrupter: Interrupter
    trainer: PolicyTrainer
    route: InterruptionRoute
    is_real: bool

    async def publish(self, version: int) -> None:
        """The next version is committed by the learner and loaded by promotion; the trainer holds it."""
        before = self.weights.open(version - 1)
        with self.db.transaction() as tx:
            tx.weights.insert(VersionNew(version, VersionOrigin.STEP))
        await swap(self.client, self.weights.open(version), last_good=before, timeout_s=30.0)
        with self.db.transaction() as tx:
            for state, after in itertools.pairwise((S.CANDIDATE, S.LOADING, S.VERIFIED, S.SERVING)):
                assert tx.weights.move(version, {state}, after)
        await asyncio.to_thread(self.trainer.restore, self.weights.open(version).path)

    async def step(self, version: int, episodes: Sequence[TrainingEpisode] = ()) -> list[TrainingEpisode]:
        """What the loop does before it trains."""
        return await asyncio.to_thread(self.route.fill, episodes, version=version)

    def record(self, episode_id: str, prompt: np.ndarray, generation: Generation) -> None:
        action = Span(SpanKind.ACTION, 0, generation.token_ids, generation.logprobs, generation.version_runs)
        with self.db.transaction() as tx:
            tx.episodes.add_turn(episode_id, TurnNew([Span(SpanKind.PROMPT, 0, prompt), action]))
            tx.episodes.finish(episode_id, StopReason.NO_TOOL_CALL, None)
            tx.episodes.grade(episode_id, Verdict(1.0, True))


@pytest.fixture(params=["scripted", pytest.param("real", marks=pytest.mark.engine)])
def server(request: pytest.FixtureRequest) -> RealEngine | None:
    """The real one, or None. Not async: starting the server runs a loop of its own."""
    return request.getfixturevalue("real_engine_process") if request.param == "real" else None


@pytest.fixture
async def place(
    server: RealEngine | None, tmp_path: Path, sqlite_url: str, model_dirs: dict[int, Path]
) -> AsyncIterator[Place]:
    weights = WeightStore(tmp_path / "weights")
    for version in VERSIONS:
        weights.import_seed(model_dirs[version], version)
    db = Database(sqlite_url)
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(1, VersionOrigin.SEED, state=S.SERVING))
    async with _scripted(model_dirs[1]) if server is None else server.client() as client:
        with ThreadPoolExecutor(2) as threads:
            interrupter = Interrupter(db, client, threads, PauseLimits(max_pause_s=60.0))
            trainer = PolicyTrainer(weights.open(1).serving_dir, LearnerSettings(), find_recipe("decoupled-exact"))
            route = InterruptionRoute(db, trainer.log_probs, Patience())
            async with interrupter.serving():
                yield Place(db, weights, client, interrupter, trainer, route, server is not None)
    db.close()
    if server is not None:
        await serve_first_version(server)


@contextlib.asynccontextmanager
async def _scripted(model_dir: Path) -> AsyncIterator[EngineClient]:
    engine = ScriptedEngine(model_dir, version=1, vocab_size=VOCAB_SIZE)
    engine.token_delay_s = 0.01
    async with (
        engine.running(),
        EngineClient(engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH) as client,
    ):
        yield client


async def sampled_by_three_versions(place: Place) -> list[TrainingEpisode]:
    """Four episodes, each one generation that two interruptions cut; reserved for a step of version 3."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB_SIZE, PROMPT_TOKENS).astype(np.int32) for _ in range(NUM_EPISODES)]
    ids = [open_episode(place.db, temperature=0.8) for _ in prompts]
    sampling = Sampling(0.8, 1.0, 700 if place.is_real else 120)
    calls = [
        asyncio.create_task(place.interrupter.engine_of(episode_id).generate(prompt, sampling, (), new_rid()))
        for episode_id, prompt in zip(ids, prompts, strict=True)
    ]
    for version in (1, 2):
        await asyncio.sleep(0.3)
        await place.step(version)
        await place.publish(version + 1)
        place.route.settle(version + 1)
    for episode_id, prompt, call in zip(ids, prompts, calls, strict=True):
        place.record(episode_id, prompt, await call)
    with place.db.reading() as tx:
        return tx.old_logprobs.upcoming(NUM_EPISODES)


async def test_the_three_routes_agree_with_each_other_and_with_float64(place: Place) -> None:
    episodes = await sampled_by_three_versions(place)
    assert len(episodes) == NUM_EPISODES
    assert all(set(e.versions[e.action_mask]) == set(VERSIONS) for e in episodes)

    settings, serving_dir = LearnerSettings(), place.weights.open(3).serving_dir
    dedicated = DedicatedRoute(place.weights, settings, max_held_bytes=10**9, answer_timeout_s=90.0)
    routes: dict[str, OldLogits] = {
        "snapshot": SnapshotRoute(Scorer(serving_dir, settings), VersionWindow(place.weights, 10**9)),
        "dedicated": dedicated,
    }
    filled = {name: await asyncio.to_thread(route.fill, episodes, version=3) for name, route in routes.items()}
    filled["interruption"] = await place.step(3, episodes)
    dedicated.close()

    assert {name: num_missing(of) for name, of in filled.items()} == dict.fromkeys(filled, 0)
    for number, episode in enumerate(episodes):
        expected = log_probs_in_float64(place.weights, episode)
        by_route = {name: of[number].old_logprobs for name, of in filled.items()}
        for (one, a), (other, b) in itertools.combinations(by_route.items(), 2):
            assert np.nanmax(np.abs(a - b)) < 1e-5, (one, other)
        for name, old in by_route.items():
            assert np.array_equal(np.isnan(old), ~episode.action_mask)
            assert np.nanmax(np.abs(old - expected)) < 2e-5, name
        if place.is_real:  # the engine's own log-probs under the same versions: the discrepancy r_d is 1
            engines = episode.logprobs[episode.action_mask]
            assert np.abs(by_route["snapshot"][episode.action_mask] - engines).max() < 1e-3
    cost = place.route.cost()
    assert cost.paused_seconds > 0  # of the interruption before version 3
    assert cost.missing_tokens == 0


@pytest.mark.parametrize("server", [pytest.param("real", marks=pytest.mark.engine)], indirect=True)
async def test_a_greedy_generation_cut_off_and_continued_is_the_one_never_cut(place: Place) -> None:
    prompt, greedy = np.arange(20, 32, dtype=np.int32), Sampling(0.0, 1.0, 400)
    whole = await place.client.generate(prompt, greedy, (), new_rid())
    call = asyncio.create_task(place.interrupter.engine_of("ep").generate(prompt, greedy, (), new_rid()))
    for _ in range(2):
        await asyncio.sleep(0.3)
        await place.step(1)
        assert not call.done()
        place.route.settle(1)  # a skipped step: no new version comes

    generation = await call

    assert generation.token_ids.tolist() == whole.token_ids.tolist()
    assert np.abs(generation.logprobs - whole.logprobs).max() < 1e-3
    assert [run.version for run in generation.version_runs] == [1]
    assert (await place.client.loads()).num_running == 0
