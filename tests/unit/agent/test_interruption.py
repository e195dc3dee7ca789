"""The engine is paused for the learner, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_agent.agent.interruptible_engine import InterruptibleEngine
from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.agent.policy import CutShort, Policy
from online_agent.agent.runner import EpisodeRunner
from online_agent.errors import EngineUnavailable
from online_agent.promotion.lease import ENGINE_LEASE
from online_agent.serving.client import EngineClient, new_rid
from online_agent.store.records import InterruptionRecord, InterruptionState, VersionNew
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, Generation, Sampling, VersionOrigin, VersionRun, VersionState
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.episodes import open_episode, seed_version
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE
from tests.unit.agent.conftest import SETTINGS, Desk, call_text
from tests.waiting import until

PROMPT = np.array([5, 6, 7, 8], np.int32)
LONG = Sampling(1.0, 1.0, 40)
PATIENT = PauseLimits(max_pause_s=30.0)
TOKEN_S = 0.01


class Chain(ScriptedEngine):
    """Each token follows from the tokens before it, whoever samples it: what a greedy policy does."""

    def _own_words(self, input_ids: list[int], params: dict[str, Any]) -> list[int]:
        ids = list(input_ids)
        for _ in range(int(params["max_new_tokens"])):
            digest = hashlib.sha256(np.asarray(ids, "<i4").tobytes()).digest()
            ids.append(3 + int.from_bytes(digest[:4], "little") % (VOCAB_SIZE - 3))
        return ids[len(input_ids) :]


@dataclass
class Room:
    """An api process in miniature, and the learner's and the swapper's side of the agreement."""

    db: Database
    engine: Chain
    client: EngineClient
    interrupter: Interrupter = field(init=False)
    running: asyncio.Task[None] = field(init=False)

    def ask(self, version: int = 0) -> int:
        with self.db.transaction() as tx:
            return tx.interruptions.ask(version)

    def record(self, number: int) -> InterruptionRecord:
        with self.db.reading() as tx:
            found = tx.interruptions.get(number)
        assert found is not None
        return found

    async def reaches(self, number: int, state: InterruptionState) -> InterruptionRecord:
        await until(lambda: self.record(number).state is state)
        return self.record(number)

    def release(self, number: int) -> None:
        with self.db.transaction() as tx:
            tx.interruptions.release(number)

    async def swap(self, version: int, model_dir: Path) -> None:
        """What promotion does."""
        with self.db.transaction() as tx:
            tx.weights.insert(VersionNew(version, VersionOrigin.STEP))
        await self.client.pause("retract")
        await self.client.update_weights(model_dir, version)
        await self.client.resume()
        with self.db.transaction() as tx:
            states = (VersionState.CANDIDATE, VersionState.LOADING, VersionState.VERIFIED, VersionState.SERVING)
            for before, after in itertools.pairwise(states):
                assert tx.weights.move(version, {before}, after)

    def generate(self, view: InterruptibleEngine, sampling: Sampling = LONG) -> asyncio.Task[Generation]:
        return asyncio.create_task(view.generate(PROMPT, sampling, (), new_rid()))

    async def has_begun(self, num_tokens: int = 3) -> None:
        await until(lambda: self.engine.num_running > 0)
        await asyncio.sleep(num_tokens * TOKEN_S)

    @contextlib.asynccontextmanager
    async def served(self, limits: PauseLimits) -> AsyncIterator[Interrupter]:
        """One life of the api."""
        with ThreadPoolExecutor(2) as threads:
            interrupter = Interrupter(self.db, self.client, threads, limits)
            self.running = asyncio.create_task(interrupter.run())
            try:
                yield interrupter
            finally:
                self.running.cancel()
                await asyncio.wait({self.running})


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    db = Database(sqlite_url)
    seed_version(db)
    yield db
    db.close()


@pytest.fixture
async def room(model_dirs: dict[int, Path], database: Database, request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    limits = getattr(request, "param", PATIENT)
    async with (
        Chain(model_dirs[1], version=0, vocab_size=VOCAB_SIZE).running() as engine,
        EngineClient(engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH) as client,
    ):
        engine.token_delay_s = TOKEN_S
        made = Room(database, engine, client)
        async with made.served(limits) as made.interrupter:
            yield made


async def uninterrupted(room: Room) -> list[int]:
    return (await room.client.generate(PROMPT, LONG, (), new_rid())).token_ids.tolist()


# --- what the agent sees ---------------------------------------------------------------------------------------------


async def test_a_generation_that_was_interrupted_is_the_one_that_was_not(room: Room, model_dirs: dict[int, Path]):
    expected = await uninterrupted(room)
    task = room.generate(room.interrupter.engine_of(open_episode(room.db)))
    await room.has_begun()
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    await room.swap(1, model_dirs[2])

    generation = await task

    second = room.engine.bodies("/generate")[-1]
    num_before = len(second["input_ids"]) - len(PROMPT)
    assert 0 < num_before < 40
    assert second["sampling_params"]["max_new_tokens"] == 40 - num_before
    assert generation.token_ids.tolist() == expected
    assert generation.version_runs == (VersionRun(0, 0, num_before), VersionRun(1, num_before, 40))
    assert (generation.finish_reason, generation.num_prompt_tokens) == ("length", 4)
    assert len(generation.logprobs) == 40


async def test_without_a_new_version_it_goes_on_with_the_old_one(room: Room):
    expected = await uninterrupted(room)
    task = room.generate(room.interrupter.engine_of(open_episode(room.db)))
    await room.has_begun()
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    room.release(number)

    generation = await task

    assert generation.token_ids.tolist() == expected
    assert generation.version_runs == (VersionRun(0, 0, 40),)
    assert (await room.reaches(number, InterruptionState.ENDED)).outcome == "released"


async def test_one_generation_can_be_interrupted_again_and_again(room: Room):
    expected = await uninterrupted(room)
    task = room.generate(room.interrupter.engine_of(open_episode(room.db)))
    for _ in range(3):
        await room.has_begun()
        number = room.ask()
        await room.reaches(number, InterruptionState.PAUSED)
        room.release(number)
        await room.reaches(number, InterruptionState.ENDED)
    assert (await task).token_ids.tolist() == expected


async def test_calls_made_during_a_pause_are_not_sent_before_it_ends(room: Room):
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    task = room.generate(room.interrupter.engine_of(open_episode(room.db)))
    await asyncio.sleep(0.1)
    assert room.engine.bodies("/generate") == []
    room.release(number)
    assert len((await task).token_ids) == 40


async def test_a_call_that_arrives_behind_the_pause_is_called_back_and_sent_again(room: Room):
    """It was on its way when the others were aborted: the server holds it at its door."""
    view = room.interrupter.engine_of(open_episode(room.db))
    await room.client.pause("abort")
    task = room.generate(view)
    await until(lambda: len(room.engine.bodies("/generate")) == 1)
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    assert not view.is_calling
    room.release(number)
    assert len((await task).token_ids) == 40
    assert len(room.engine.bodies("/generate")) == 2


async def test_an_episode_goes_through_an_interruption_as_if_there_were_none(desk: Desk):
    """One turn is interrupted in the middle; the recorded turn is whole."""
    desk.engine.version_label, desk.engine.token_delay_s = "0", TOKEN_S
    ids = desk.ids(f"{call_text('submit')}<|im_end|>")
    desk.engine.replies.append(Reply(ids))
    with ThreadPoolExecutor(2) as threads:
        async with EngineClient(desk.engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH) as client:
            interrupter = Interrupter(desk.db, client, threads, PATIENT)
            running = asyncio.create_task(interrupter.run())
            desk.runner = EpisodeRunner(
                desk.db, client, desk.renderer, desk.environments, SETTINGS, desk.finished.append, interrupter.engine_of
            )
            episode_id = await desk.start()
            await until(lambda: desk.engine.num_running > 0)
            await asyncio.sleep(5 * TOKEN_S)
            with desk.db.transaction() as tx:
                number = tx.interruptions.ask(0)

            def state() -> InterruptionState:
                with desk.db.reading() as tx:
                    return tx.interruptions.get(number).state

            await until(lambda: state() is InterruptionState.PAUSED)
            with desk.db.reading() as tx:
                (held,) = tx.old_logprobs.held_by(0)
            desk.engine.replies.append(Reply(ids[held.num_action_tokens :]))
            with desk.db.transaction() as tx:
                tx.interruptions.release(number)
            record = await desk.ended(episode_id)
            await desk.runner.drain(1.0)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    assert 0 < held.num_action_tokens < len(ids)
    assert held.token_ids[held.action_mask].tolist() == ids[: held.num_action_tokens]
    assert (record.status, record.num_turns) == (EpisodeStatus.FINISHED, 1)
    (turn,) = desk.turns(episode_id)
    assert turn.spans[-1].token_ids.tolist() == ids


# --- aborts that are none of the interrupter's business --------------------------------------------------------------


async def test_an_abort_that_nobody_here_asked_for_is_an_outage_as_before(room: Room, desk: Desk):
    policy = Policy(room.interrupter.engine_of("ep"), desk.renderer)
    task = asyncio.create_task(policy.sample(PROMPT, LONG))
    await room.has_begun()
    await room.client.pause("abort")
    await until(lambda: policy._outage is not None)
    with pytest.raises(EngineUnavailable, match="aborted"):
        policy.raise_for_outage()
    await room.client.resume()
    assert len((await task).token_ids) == 40


async def test_an_episode_cancelled_during_a_pause_keeps_what_it_had_sampled(room: Room, desk: Desk):
    policy = Policy(room.interrupter.engine_of(open_episode(room.db)), desk.renderer)
    task = asyncio.create_task(policy.sample(PROMPT, LONG))
    await room.has_begun()
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    started_at = time.monotonic()
    task.cancel()
    with pytest.raises(CutShort) as cut:
        await task
    assert time.monotonic() - started_at < 1.0
    assert 0 < len(cut.value.generation.token_ids) < 40
    room.release(number)
    await room.reaches(number, InterruptionState.ENDED)
    assert room.engine.num_running == 0


async def test_an_episode_cancelled_while_sampling_stops_the_engine(room: Room, desk: Desk):
    policy = Policy(room.interrupter.engine_of("ep"), desk.renderer)
    task = asyncio.create_task(policy.sample(PROMPT, LONG))
    await room.has_begun()
    task.cancel()
    with pytest.raises(CutShort) as cut:
        await task
    assert 0 < len(cut.value.generation.token_ids) < 40
    assert room.engine.num_running == 0


# --- what the learner gets -------------------------------------------------------------------------------------------


async def test_the_generations_under_way_are_stored_before_the_learner_is_answered(room: Room):
    ids = [open_episode(room.db) for _ in range(3)]
    views = [room.interrupter.engine_of(episode_id) for episode_id in ids]
    tasks = [room.generate(view) for view in views]
    await until(lambda: room.engine.num_running == 3)
    await asyncio.sleep(3 * TOKEN_S)
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)

    with room.db.reading() as tx:
        held = {episode.id: episode for episode in tx.old_logprobs.held_by(0)}

    room.release(number)
    assert set(held) == set(ids)
    for episode_id, task in zip(ids, tasks, strict=True):
        num = held[episode_id].num_action_tokens
        assert 0 < num < 40
        assert held[episode_id].token_ids.tolist() == [*PROMPT, *(await task).token_ids[:num]]


async def test_a_turn_that_was_sampled_and_is_not_recorded_yet_is_stored_too(room: Room):
    """Its tools are running: neither the engine nor the database knows its tokens."""
    view = room.interrupter.engine_of(open_episode(room.db))
    generation = await room.generate(view)
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    with room.db.reading() as tx:
        (held,) = tx.old_logprobs.held_by(0)
    assert held.token_ids.tolist() == [*PROMPT, *generation.token_ids]


async def test_the_pause_is_measured_from_the_last_token_to_the_swap(room: Room, model_dirs: dict[int, Path]):
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    await asyncio.sleep(0.3)
    await room.swap(1, model_dirs[2])
    ended = await room.reaches(number, InterruptionState.ENDED)
    with room.db.reading() as tx:
        served_at = tx.weights.get(1).served_at
    assert ended.outcome == "swapped"
    assert ended.ended_at == served_at
    assert 0.3 < ended.ended_at - ended.paused_at < 2.0


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [PauseLimits(max_pause_s=0.2)], indirect=True)
async def test_a_learner_that_dies_in_a_pause_does_not_keep_the_engine(room: Room):
    task = room.generate(room.interrupter.engine_of(open_episode(room.db)))
    await room.has_begun()
    ended = await room.reaches(room.ask(), InterruptionState.ENDED)
    assert ended.outcome == "no new version in time"
    assert 0.2 < ended.ended_at - ended.paused_at < 2.0
    assert len((await task).token_ids) == 40


async def test_a_version_that_is_rejected_does_not_keep_the_engine(room: Room):
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    with room.db.transaction() as tx:
        tx.weights.insert(VersionNew(1, VersionOrigin.STEP))
        tx.weights.move(1, {VersionState.CANDIDATE}, VersionState.REJECTED, "not finite")
    assert (await room.reaches(number, InterruptionState.ENDED)).outcome == "the new version was rejected"
    assert len((await room.generate(room.interrupter.engine_of("ep"))).token_ids) == 40


async def test_the_engine_is_not_paused_in_the_middle_of_a_swap(room: Room):
    with room.db.transaction() as tx:
        assert tx.leases.acquire(ENGINE_LEASE, "swapper", 30.0)
    number = room.ask()
    await asyncio.sleep(0.3)
    assert room.record(number).state is InterruptionState.ASKED
    assert room.engine.bodies("/pause_generation") == []
    with room.db.transaction() as tx:
        tx.leases.release(ENGINE_LEASE, "swapper")
    await room.reaches(number, InterruptionState.PAUSED)


async def test_the_engine_is_not_resumed_in_the_middle_of_a_swap(room: Room):
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    with room.db.transaction() as tx:
        assert tx.leases.acquire(ENGINE_LEASE, "swapper", 30.0)
    room.release(number)
    await asyncio.sleep(0.3)
    assert room.engine.bodies("/continue_generation") == []
    with room.db.transaction() as tx:
        tx.leases.release(ENGINE_LEASE, "swapper")
    await room.reaches(number, InterruptionState.ENDED)
    assert len(room.engine.bodies("/continue_generation")) == 1


async def test_an_api_that_stops_in_a_pause_resumes_the_engine_first(room: Room):
    number = room.ask()
    await room.reaches(number, InterruptionState.PAUSED)
    room.running.cancel()
    await asyncio.wait({room.running})
    assert len(room.engine.bodies("/continue_generation")) == 1
    assert room.record(number).outcome == "cut off"


async def test_an_api_that_was_killed_in_a_pause_resumes_the_engine_at_its_next_start(room: Room):
    with room.db.transaction() as tx:
        number = tx.interruptions.ask(0)
        tx.interruptions.pause(number, 0.0, ())
    async with room.served(PATIENT):
        assert (await room.reaches(number, InterruptionState.ENDED)).outcome == "the api was started anew"
    assert len(room.engine.bodies("/continue_generation")) == 1


async def test_an_engine_that_fails_to_pause_is_let_go_and_paused_for_the_next_request(
    room: Room, monkeypatch: pytest.MonkeyPatch
):
    pause, failed = EngineClient.pause, []

    async def fail_once(self: EngineClient, mode: str = "retract") -> None:
        if not failed:
            failed.append(mode)
            raise EngineUnavailable("broken pipe")
        await pause(self, mode)

    monkeypatch.setattr(EngineClient, "pause", fail_once)
    assert (await room.reaches(room.ask(), InterruptionState.ENDED)).outcome == "cut off"
    assert len(room.engine.bodies("/continue_generation")) == 1
    await room.reaches(room.ask(), InterruptionState.PAUSED)


async def test_an_engine_that_serves_another_version_by_now_is_not_paused(room: Room):
    ended = await room.reaches(room.ask(version=7), InterruptionState.ENDED)
    assert ended.outcome == "another version serves"
    assert room.engine.bodies("/pause_generation") == []


async def test_a_withdrawn_request_leaves_the_engine_running(room: Room):
    number = room.ask()
    room.release(number)
    await asyncio.sleep(0.2)
    assert room.record(number).outcome == "withdrawn"
    assert len((await room.generate(room.interrupter.engine_of("ep"))).token_ids) == 40
