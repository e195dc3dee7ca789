"""A learner interrupts the real SGLang while clients are being answered: each hears one answer, each sampled token is
stored once, under the version that made it, and what the old version had sampled is scored before it goes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.interruption import InterruptionRoute, Patience
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.serving.swap import swap
from online_agent.store.records import CompletionRecord, VersionNew
from online_agent.types import SpanKind, TrainingEpisode, VersionOrigin, VersionRun, VersionState
from tests.engine_fixtures import RealEngine
from tests.fakes.api import TENANT
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.engine_site import Site, open_site
from tests.fakes.policy_versions import log_probs_in_float64
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.slow, SILENCED]

COOL = 0.1
"""A temperature at which version 1 does not end its turn in its first 150 ids but once in 5,000 answers."""
MAX_TOKENS = 240
S = VersionState


@dataclass
class Heard:
    """What a client was told, put together from all chunks."""

    text: str = ""
    finish: str | None = None
    logprobs: list[float] = field(default_factory=list)
    num_tokens: int = 0


@dataclass
class Place:
    """Clients and a learner around one engine."""

    site: Site
    client: AsyncOpenAI
    route: InterruptionRoute

    @property
    def num_in_flight(self) -> int:
        gateway = self.site.world.runtime.gateway
        assert gateway is not None
        return gateway.num_in_flight

    def ask(self, episode: str, *, is_streamed: bool, **more: Any) -> asyncio.Task[Heard]:
        call = self._streamed if is_streamed else self._plain
        whole = {
            "model": "online-agent",
            "messages": [{"role": "user", "content": "fix src/calc.py"}],
            "max_tokens": MAX_TOKENS,
            "temperature": COOL,
            "logprobs": True,
            "extra_headers": {"X-Episode-Id": episode},
            **more,
        }
        return asyncio.create_task(call(whole))

    async def is_sampling(self, num_calls: int = 1) -> None:
        async def is_running() -> bool:
            return (await self.site.engine.loads()).num_running == num_calls

        await until(is_running)

    async def is_free(self) -> bool:
        loads = await self.site.engine.loads()
        return loads.num_running == loads.num_waiting == self.num_in_flight == 0

    async def interrupt(self) -> list[TrainingEpisode]:
        """What a step of version 1 does before it trains; what it found under way and has scored."""
        await asyncio.to_thread(self.route.fill, (), version=1)
        with self.site.world.db.reading() as tx:
            return tx.old_logprobs.held_by(1)

    async def publish(self) -> None:
        """Version 2 is committed by the learner and loaded by promotion."""
        weights, db = self.site.world.runtime.weights, self.site.world.db
        with db.transaction() as tx:
            tx.weights.insert(VersionNew(2, VersionOrigin.STEP))
        await swap(self.site.engine, weights.open(2), last_good=weights.open(1), timeout_s=30.0)
        with db.transaction() as tx:
            for state, after in itertools.pairwise((S.CANDIDATE, S.LOADING, S.VERIFIED, S.SERVING)):
                assert tx.weights.move(2, {state}, after)
        self.route.settle(2)

    def skip(self) -> None:
        """The step publishes nothing."""
        self.route.settle(1)

    def completions(self, episode: str) -> list[CompletionRecord]:
        with self.site.world.db.reading() as tx:
            found = tx.clients.find(TENANT, episode)
            assert found is not None
            return tx.clients.completions(found.id)

    def row(self, episode: str) -> TrainingEpisode:
        with self.site.world.db.reading() as tx:
            [row] = tx.old_logprobs.fill(self.site.rows(episode))
        return row

    def action(self, episode: str) -> tuple[list[int], np.ndarray[Any, Any], tuple[VersionRun, ...]]:
        """Ids, log-probs and version runs of the only answer, trained on or not."""
        with self.site.world.db.reading() as tx:
            found = tx.clients.find(TENANT, episode)
            assert found is not None
            [spans] = tx.clients.spans_of(found.id).values()
        [span] = [span for span in spans if span.kind is SpanKind.ACTION]
        assert span.logprobs is not None
        return span.token_ids.tolist(), span.logprobs, span.version_runs

    async def _plain(self, whole: dict[str, Any]) -> Heard:
        answer = await self.client.chat.completions.create(**whole)
        [choice] = answer.choices
        logprobs = [token.logprob for token in choice.logprobs.content]
        return Heard(choice.message.content, choice.finish_reason, logprobs, answer.usage.completion_tokens)

    async def _streamed(self, whole: dict[str, Any]) -> Heard:
        heard = Heard()
        stream = await self.client.chat.completions.create(**whole, stream=True, stream_options={"include_usage": True})
        async with stream:
            async for chunk in stream:
                heard.num_tokens += 0 if chunk.usage is None else chunk.usage.completion_tokens
                for choice in chunk.choices:
                    heard.text += choice.delta.content or ""
                    heard.finish = choice.finish_reason or heard.finish
                    heard.logprobs += [token.logprob for token in (choice.logprobs and choice.logprobs.content) or ()]
        return heard


@pytest.fixture(scope="module")
def trainer(model_dirs: dict[int, Path]) -> PolicyTrainer:
    """It holds version 1 and is never stepped."""
    return PolicyTrainer(model_dirs[1], LearnerSettings(), find_recipe("decoupled-exact"))


@pytest.fixture
async def place(tmp_path: Path, real_engine: RealEngine, trainer: PolicyTrainer) -> AsyncIterator[Place]:
    async with open_site(tmp_path, real_engine, is_interrupted=True) as site:
        for version in (1, 2):
            site.world.runtime.weights.import_seed(real_engine.model_dirs[version], version)
        route = InterruptionRoute(site.world.db, trainer.log_probs, Patience())
        http = httpx.AsyncClient(trust_env=False)
        async with AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key, http_client=http, max_retries=0) as client:
            yield Place(site, client, route)


def assert_heard_is_stored(place: Place, episode: str, heard: Heard) -> None:
    """Every id once: as many as were asked for, the log-probs that the client got, the text that it read."""
    ids, logprobs, runs = place.action(episode)
    renderer = place.site.renderer
    has_ended = ids[-1] in renderer.stop_token_ids
    said = ids[:-1] if has_ended else ids
    assert heard.finish == ("stop" if has_ended else "length")
    assert has_ended or len(ids) == MAX_TOKENS
    assert (heard.num_tokens, len(heard.logprobs)) == (len(ids), len(said))
    np.testing.assert_allclose(logprobs[: len(said)], heard.logprobs, rtol=0, atol=1e-6)
    assert heard.text == renderer.decode(np.asarray(said, np.int32)).replace("\0", "\ufffd")
    assert [0, *(run.end for run in runs)] == [*(run.start for run in runs), len(ids)]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_goes_on_under_the_next_version_and_no_token_is_lost_or_made_twice(
    place: Place, is_streamed: bool
) -> None:
    call = place.ask("task", is_streamed=is_streamed)
    await place.is_sampling()
    [kept] = await place.interrupt()
    await place.publish()
    heard = await call

    assert_heard_is_stored(place, "task", heard)
    row = place.row("task")
    num_kept = kept.num_action_tokens
    ids, versions = row.token_ids[row.action_mask].tolist(), row.versions[row.action_mask].tolist()
    assert 0 < num_kept < len(ids)
    assert ids[:num_kept] == kept.token_ids[kept.action_mask].tolist()
    assert versions == [1] * num_kept + [2] * (len(ids) - num_kept)
    expected = log_probs_in_float64(place.site.world.runtime.weights, row)
    assert np.nanmax(np.abs(row.logprobs - expected)[row.action_mask]) < 5e-3
    assert row.old_logprobs is not None
    assert np.array_equal(np.isfinite(row.old_logprobs), row.versions == 1)
    assert np.nanmax(np.abs(row.old_logprobs - expected)) < 1e-4


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_two_pauses_leave_a_greedy_answer_as_it_would_have_been(place: Place, is_streamed: bool) -> None:
    whole = await place.ask("whole", is_streamed=is_streamed, temperature=0)
    call = place.ask("cut", is_streamed=is_streamed, temperature=0)
    for _ in range(2):
        await place.is_sampling()
        await place.interrupt()
        assert not call.done()
        place.skip()
    heard = await call

    assert (heard.text, heard.finish, heard.num_tokens) == (whole.text, whole.finish, whole.num_tokens)
    np.testing.assert_allclose(heard.logprobs, whole.logprobs, rtol=0, atol=1e-3)
    assert_heard_is_stored(place, "cut", heard)
    assert place.action("cut")[2] == place.action("whole")[2] == (VersionRun(1, 0, MAX_TOKENS),)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_in_a_pause_frees_everything_and_keeps_what_was_sampled(
    place: Place, is_streamed: bool
) -> None:
    call = place.ask("task", is_streamed=is_streamed)
    await place.is_sampling()
    [kept] = await place.interrupt()
    call.cancel()
    await until(lambda: place.num_in_flight == 0, timeout_s=2.0)
    await place.publish()
    await until(place.is_free, timeout_s=2.0)

    [completion] = place.completions("task")
    assert completion.is_cut_short
    ids, _, runs = place.action("task")
    assert ids == kept.token_ids[kept.action_mask].tolist()
    assert runs == (VersionRun(1, 0, len(ids)),)
    assert place.site.rows("task") == []  # an answer that was cut short is kept and not trained on
    heard = await place.ask("next", is_streamed=is_streamed)
    assert_heard_is_stored(place, "next", heard)
    assert {run.version for run in place.action("next")[2]} == {2}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_that_meet_a_paused_engine_are_answered_once_by_the_next_version(
    place: Place, is_streamed: bool
) -> None:
    """One is at the engine's door when the pause begins, one comes while it lasts."""
    await place.site.engine.pause("abort")
    early = place.ask("early", is_streamed=is_streamed)
    await until(lambda: place.num_in_flight == 1)
    assert await place.interrupt() == []
    late = place.ask("late", is_streamed=is_streamed)
    await until(lambda: place.num_in_flight == 2)
    await place.publish()
    for episode, heard in (("early", await early), ("late", await late)):
        assert_heard_is_stored(place, episode, heard)
        assert {run.version for run in place.action(episode)[2]} == {2}
    await until(place.is_free, timeout_s=2.0)
