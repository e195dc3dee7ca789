"""A real engine under traffic, with the database and the interrupter that the service has around it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import SecretStr

from envs.types import Verdict
from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.config.serving import EngineSettings
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.launcher import EngineProcess, context_length
from online_agent.serving.readiness import wait_ready
from online_agent.serving.swap import swap
from online_agent.store.records import EpisodeNew, TurnNew, VersionNew
from online_agent.store.session import Database
from online_agent.types import (
    Float32Array,
    Generation,
    Int32Array,
    Sampling,
    Span,
    SpanKind,
    StopReason,
    TrainingEpisode,
    VersionOrigin,
    VersionRun,
    VersionState,
)
from online_agent.weights.store import WeightStore

_TENANT = "bench"
_START_S, _SWAP_S, _CALL_S, _POLL_S = 300.0, 60.0, 400.0, 0.02
_S = VersionState

Result = TypeVar("Result")


class LiveInterruption:
    """Methods are called from the benchmark's thread; the engine's side runs on a loop of its own."""

    def __init__(self, db: Database, weights: WeightStore, loop: asyncio.AbstractEventLoop) -> None:
        self.db, self._weights, self._loop = db, weights, loop
        self._calls: list[asyncio.Task[Generation]] = []
        self._under_way: list[str] = []
        self._client: EngineClient
        self._interrupter: Interrupter

    def start_traffic(self, prompts: Sequence[Int32Array], sampling: Sampling) -> None:
        """One long generation after each prompt is under way."""
        self._under_way = [self._open_episode() for _ in prompts]
        self.run(self._start(prompts, sampling))

    def stop_traffic(self) -> None:
        self.run(self._stop())
        self.erase(self._under_way)

    def publish(self, version: int) -> None:
        """The next version is committed and loaded, as promotion does it."""
        with self.db.transaction() as tx:
            serving = tx.weights.serving()
            tx.tenants.opt_in_once(_TENANT)
        tx.weights.insert(VersionNew(version, VersionOrigin.STEP))
        assert serving is not None
        target, before = self._weights.open(version), self._weights.open(serving.version)
        self.run(swap(self._client, target, last_good=before, timeout_s=_SWAP_S))
        with self.db.transaction() as tx:
            for state, after in itertools.pairwise((_S.CANDIDATE, _S.LOADING, _S.VERIFIED, _S.SERVING)):
                tx.weights.move(version, {state}, after)

    def store(self, episodes: Sequence[TrainingEpisode]) -> list[TrainingEpisode]:
        """The episodes wait in the training queue; returned with the ids they have there."""
        stored = []
        for episode in episodes:
            episode_id = self._open_episode()
            with self.db.transaction() as tx:
                tx.episodes.add_turn(episode_id, TurnNew(spans_of(episode)))
                tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
                tx.episodes.grade(episode_id, Verdict(episode.reward, episode.reward > 0))
            stored.append(replace(episode, id=episode_id))
        return stored

    def put_scores(self, episodes: Sequence[TrainingEpisode], version: int, scored: Sequence[Float32Array]) -> None:
        with self.db.transaction() as tx:
            tx.old_logprobs.put(episodes, version, scored)

    def filled(self, episodes: Sequence[TrainingEpisode]) -> list[TrainingEpisode]:
        with self.db.reading() as tx:
            return tx.old_logprobs.fill(episodes)

    def last_pause_s(self) -> float:
        """Of the interruption that a swap has just ended."""
        deadline = time.monotonic() + _SWAP_S
        while True:
            with self.db.reading() as tx:
                is_over, ended = tx.interruptions.current() is None, tx.interruptions.ended_after(0)
            if is_over and ended and ended[-1].ended_at is not None and ended[-1].paused_at is not None:
                return ended[-1].ended_at - ended[-1].paused_at
            if time.monotonic() > deadline:
                raise RuntimeError("the interruption did not end")
            time.sleep(_POLL_S)

    def erase(self, episode_ids: Sequence[str]) -> None:
        with self.db.transaction() as tx:
            for episode_id in episode_ids:
                tx.episodes.erase(_TENANT, episode_id)

    async def open(self, stack: AsyncExitStack, version: int, run_dir: Path) -> None:
        settings = EngineSettings(api_key=SecretStr(secrets.token_hex(16)))
        serving_dir = self._weights.open(version).serving_dir
        process = EngineProcess(settings, serving_dir, version, port=_free_port(), run_dir=run_dir)
        process.start()
        stack.callback(process.stop)
        vocab_size = _vocab_size(serving_dir)
        key = settings.api_key.get_secret_value()
        self._client = await stack.enter_async_context(
            EngineClient(process.url, key, vocab_size=vocab_size, context_length=context_length(settings, serving_dir))
        )
        await wait_ready(self._client, process, serving_dir, _START_S)
        threads = stack.enter_context(ThreadPoolExecutor(2))
        self._interrupter = Interrupter(self.db, self._client, threads, PauseLimits(max_pause_s=_SWAP_S))
        await stack.enter_async_context(self._interrupter.serving())

    async def _start(self, prompts: Sequence[Int32Array], sampling: Sampling) -> None:
        self._calls = [
            asyncio.create_task(self._interrupter.engine_of(episode_id).generate(prompt, sampling, (), new_rid()))
            for episode_id, prompt in zip(self._under_way, prompts, strict=True)
        ]

    async def _stop(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _open_episode(self) -> str:
        with self.db.transaction() as tx:
            return tx.episodes.create(EpisodeNew(_TENANT, "bug_repair", "train-0", "train"))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)


@contextmanager
def live_interruption(work_dir: Path, weights: WeightStore, version: int) -> Iterator[LiveInterruption]:
    """The engine serves ``version``, the database says so. Takes half a minute to start."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine's side")
    db = Database(f"sqlite:///{work_dir / 'bench.db'}")
    db.migrate()
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(version, VersionOrigin.SEED, state=_S.SERVING))
    live, stack = LiveInterruption(db, weights, loop), AsyncExitStack()
    thread.start()
    try:
        live.run(live.open(stack, version, work_dir / "engine"))
        yield live
    finally:
        live.run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        db.close()


def spans_of(episode: TrainingEpisode) -> list[Span]:
    """The episode cut where its mask changes."""
    edges = np.flatnonzero(np.diff(episode.action_mask.astype(np.int8))) + 1
    spans = []
    for start, end in itertools.pairwise((0, *edges.tolist(), len(episode.token_ids))):
        ids = episode.token_ids[start:end]
        if episode.action_mask[start]:
            runs = _runs(episode.versions[start:end])
            spans.append(Span(SpanKind.ACTION, 0, ids, episode.logprobs[start:end], runs))
        else:
            spans.append(Span(SpanKind.OBSERVATION if spans else SpanKind.PROMPT, 0, ids))
    return spans


def _runs(versions: Int32Array) -> tuple[VersionRun, ...]:
    edges = (0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions))
    return tuple(VersionRun(int(versions[start]), start, end) for start, end in itertools.pairwise(edges))


def _vocab_size(serving_dir: Path) -> int:
    return ChatRenderer.load(serving_dir).vocab_size


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
