"""Pauses the engine for the learner, keeps what was being sampled, and lets every generation go on afterwards.

    learner asks → calls held, those under way aborted, engine paused → partial generations stored, answered
    learner scores, trains, publishes → the swap loads the new version and resumes → generations continue

(Synchronisation by partial-rollout interruption, arXiv 2605.12070.)

Invariants
- An agent never sees an interruption: its generation comes back whole, sampled in pieces, with exact version runs. Nor
  does a client of the chat routes, whose stream just waits (``gateway/interruptible.py``).
- While the engine is paused no call is sent to it, so none hangs there.
- The engine is paused and resumed here only under the lease of the swapper: never in the middle of a swap.
- Whatever the learner does (nothing, a skipped step, death), the engine samples again ``max_pause_s`` after the pause,
  or when the swap that is then under way ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from online_agent.agent.interruptible_engine import InterruptibleEngine
from online_agent.agent.policy import Engine
from online_agent.errors import Busy, EngineError, OnlineAgentError
from online_agent.promotion.lease import engine_lease
from online_agent.store.records import InterruptionRecord, InterruptionState, PartialGenerationNew
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase
from online_agent.telemetry.logging import get_logger
from online_agent.types import VersionState

POLL_S = 0.05
ERROR_RETRY_S = 1.0
SETTLE_S = 1.0
"""How long an aborted call may take to come back. What has not then waits at the engine's door: it is called back and
sent again after the pause."""
SWAPPED = "swapped"
RELEASED = "released"
REJECTED = "the new version was rejected"
TIMED_OUT = "no new version in time"
CUT_OFF = "cut off"
TOO_LATE = "another version serves"
RESTARTED = "the api was started anew"

_log = get_logger(__name__)


class PausableEngine(Engine, Protocol):
    """The part of EngineClient that interrupting needs."""

    async def pause(self, mode: str = "retract") -> None: ...

    async def resume(self) -> None: ...


class Interruptible(Protocol):
    """Calls, one after another, that a pause can cut off; each is made only while the gate is open."""

    @property
    def is_calling(self) -> bool: ...

    async def interrupt(self) -> None: ...

    async def settle(self, timeout_s: float) -> None: ...

    def under_way(self) -> PartialGenerationNew | None: ...


@dataclass(frozen=True, slots=True)
class PauseLimits:
    """``max_pause_s`` bounds a pause that no swap ends; ``lease_s`` how long a killed api keeps swappers waiting."""

    max_pause_s: float = 30.0
    lease_s: float = 30.0


class Interrupter:
    """One in the process that sends the agent's calls. ``run`` serves the learner until it is cancelled."""

    def __init__(self, db: Database, engine: PausableEngine, threads: Executor, limits: PauseLimits) -> None:
        self._db, self._engine, self._limits = db, engine, limits
        self._store = ThreadedDatabase(db, threads)
        self._gate = asyncio.Event()
        self._gate.set()
        self._is_holding = False
        self._views: weakref.WeakSet[Interruptible] = weakref.WeakSet()

    @property
    def gate(self) -> asyncio.Event:
        """Open while calls may be sent."""
        return self._gate

    def follow(self, view: Interruptible) -> None:
        """It is interrupted like all others, for as long as anybody holds it."""
        self._views.add(view)

    def forget(self, view: Interruptible) -> None:
        """It is not interrupted any more."""
        self._views.discard(view)

    def engine_of(self, episode_id: str) -> InterruptibleEngine:
        """The engine for that episode's calls."""
        view = InterruptibleEngine(episode_id, self._engine, self._gate)
        self.follow(view)
        return view

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """``run`` goes on inside the block."""
        running = asyncio.create_task(self.run(), name="interrupter")
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def run(self) -> None:
        """Until cancelled; a pause under way is ended then."""
        await self._clear_leftover()
        while True:
            delay_s = POLL_S
            try:
                asked = await self._store.read(lambda tx: tx.interruptions.current())
                if asked is not None and asked.state is InterruptionState.ASKED:
                    await self._serve(asked)
            except Busy:
                pass  # a swap is under way: the engine is asked again when it has ended
            except OnlineAgentError as error:
                _log.warning("interruption failed", reason=str(error))
                delay_s = ERROR_RETRY_S
            await asyncio.sleep(delay_s)

    async def _clear_leftover(self) -> None:
        """An api that was killed in a pause left the engine paused."""
        with contextlib.suppress(OnlineAgentError):
            left = await self._store.read(lambda tx: tx.interruptions.current())
            if left is not None and left.state is not InterruptionState.ASKED:
                await self._resume(left, RESTARTED)

    async def _serve(self, asked: InterruptionRecord) -> None:
        """From the pause until the engine samples again; raises Busy when it could not be paused now."""
        self._gate.clear()
        try:
            paused = await self._pause(asked)
            if paused is None:
                return
            paused_at, partials = paused
            if await self._store.write(lambda tx: tx.interruptions.pause(asked.number, paused_at, partials)):
                _log.info("engine paused", number=asked.number, version=asked.version, under_way=len(partials))
                await self._until_over(asked, paused_at)
        finally:
            if self._is_holding:
                await asyncio.shield(self._let_go(asked))
            self._gate.set()

    async def _pause(self, asked: InterruptionRecord) -> tuple[float, list[PartialGenerationNew]] | None:
        """Since when nothing is sampled, and what was; None when the version asked about no longer serves.

        Raises Busy, EngineError.
        """
        async with engine_lease(self._db, self._limits.lease_s):
            serving = await self._store.read(lambda tx: tx.weights.serving())
            if serving is None or serving.version != asked.version:
                await self._store.write(lambda tx: tx.interruptions.end(asked.number, TOO_LATE))
                return None
            paused_at, calling = time.time(), [view for view in self._views if view.is_calling]
            # One by one first: a pause that finds requests running looks again only after a second.
            await asyncio.gather(*(view.interrupt() for view in calling))
            self._is_holding = True
            await self._engine.pause("abort")
            await asyncio.gather(*(view.settle(SETTLE_S) for view in calling))
        under_way = [view.under_way() for view in list(self._views)]
        return paused_at, [partial for partial in under_way if partial is not None]

    async def _until_over(self, asked: InterruptionRecord, paused_at: float) -> None:
        while self._is_holding:
            await asyncio.sleep(POLL_S)
            is_late = time.time() - paused_at > self._limits.max_pause_s
            outcome, ended_at = await self._store.read(lambda tx: _outcome(tx, asked))
            if outcome == SWAPPED:
                await self._note_swap(asked, ended_at)
            elif outcome is not None or is_late:
                # A swapper at work resumes by itself, an engine that is away is asked again.
                with contextlib.suppress(Busy, EngineError):
                    await self._resume(asked, outcome or TIMED_OUT)

    async def _note_swap(self, asked: InterruptionRecord, ended_at: float | None) -> None:
        """The swap has resumed the engine."""
        self._is_holding = False
        await self._store.write(lambda tx: tx.interruptions.end(asked.number, SWAPPED, ended_at))

    async def _let_go(self, asked: InterruptionRecord) -> None:
        """The last thing done for an interruption that was cut off."""
        try:
            await self._resume(asked, CUT_OFF)
        except OnlineAgentError as error:
            self._is_holding = False
            _log.warning("engine not resumed", number=asked.number, reason=str(error))

    async def _resume(self, record: InterruptionRecord, outcome: str) -> None:
        """The engine samples again. Raises Busy while a swap is under way, EngineError."""
        async with engine_lease(self._db, self._limits.lease_s):
            await self._engine.resume()
        self._is_holding = False
        await self._store.write(lambda tx: tx.interruptions.end(record.number, outcome))
        _log.info("engine resumed", number=record.number, outcome=outcome)


def _outcome(tx: Transaction, asked: InterruptionRecord) -> tuple[str | None, float | None]:
    """What has ended the pause, or should, and when the engine began to sample again if it did."""
    serving = tx.weights.serving()
    if serving is not None and serving.version != asked.version:
        return SWAPPED, serving.served_at
    record = tx.interruptions.get(asked.number)
    if record is None or record.state is not InterruptionState.PAUSED:
        return RELEASED, None
    newest = tx.weights.latest()
    if newest is not None and newest.version > asked.version and newest.state is VersionState.REJECTED:
        return REJECTED, None
    return None, None
