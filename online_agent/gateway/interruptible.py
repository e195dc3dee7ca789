"""The engine as one choice of a client's answer sees it, where the learner interrupts: held at the door in a pause, cut
off by one, and what it has sampled so far is known.

The choice goes on by itself from the ids it had when a call comes back cut off (``ChoiceSampler``); what had not begun
is sent again from here. A client that streams sees nothing but a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from online_agent.agent.generations import join
from online_agent.agent.interruption import Interrupter
from online_agent.errors import EngineError
from online_agent.gateway.sampler import Engine
from online_agent.serving.client import new_rid
from online_agent.serving.streams import StreamPart
from online_agent.store.records import PartialGenerationNew
from online_agent.types import Generation, Int32Array, Sampling, Span, SpanKind

T = TypeVar("T")


class InterruptibleChoice:
    """An ``Engine`` for the calls of one choice, which come one after another. ``episode_id`` is None for an answer
    that is not stored: it is held and cut off like any other, and nothing of it is scored.
    """

    def __init__(self, engine: Engine, interrupter: Interrupter, episode_id: str | None, temperature: float) -> None:
        self._engine, self._gate = engine, interrupter.gate
        self._interrupter, self._episode_id, self._temperature = interrupter, episode_id, temperature
        self._rid = ""
        self._is_aborted = self._is_interrupted = False
        self._wake = asyncio.Event()
        self._is_over = asyncio.Event()
        self._is_over.set()
        self._waiting: asyncio.Future[Any] | None = None
        """For the first of what the engine answers; only until then can the call be sent again unnoticed."""
        self._prompt_ids: Int32Array | None = None
        self._so_far: Generation | None = None
        interrupter.follow(self)

    @property
    def max_sequence_tokens(self) -> int:
        return self._engine.max_sequence_tokens

    @property
    def records_experts(self) -> bool:
        return self._engine.records_experts

    @property
    def is_calling(self) -> bool:
        return not self._is_over.is_set()

    async def generate(
        self,
        input_ids: Int32Array,
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        rid: str,
        *,
        more: Mapping[str, Any] | None = None,
        num_top_logprobs: int = 0,
        experts_from: int = 0,
    ) -> Generation:
        """As the engine's, but for the wait in a pause."""
        self._begin(input_ids, rid)
        options: dict[str, Any] = {"more": more, "num_top_logprobs": num_top_logprobs, "experts_from": experts_from}
        while await self._is_let_in():
            async with self._calling():
                asked = self._engine.generate(input_ids, sampling, stop_token_ids, self._rid, **options)
                piece = await self._first(asked)
                if piece is not None and not self._is_sent_again(piece):
                    return self._kept(piece)
        return _nothing(len(input_ids))

    async def generate_stream(
        self,
        input_ids: Int32Array,
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        rid: str,
        *,
        more: Mapping[str, Any] | None = None,
        num_top_logprobs: int = 0,
        experts_from: int = 0,
    ) -> AsyncIterator[StreamPart]:
        """As the engine's, but for the wait in a pause."""
        self._begin(input_ids, rid)
        options: dict[str, Any] = {"more": more, "num_top_logprobs": num_top_logprobs, "experts_from": experts_from}
        while await self._is_let_in():
            async with self._calling():
                parts = self._engine.generate_stream(input_ids, sampling, stop_token_ids, self._rid, **options)
                part = await self._first(anext(parts))
                while part is not None and part.generation is None:
                    yield part
                    part = await anext(parts)
            if part is not None and part.generation is not None and not self._is_sent_again(part.generation):
                self._kept(part.generation)
                yield part
                return
        yield StreamPart([], [], [], _nothing(len(input_ids)))

    async def abort(self, rid: str) -> None:
        """The generation that was begun under ``rid`` ends with what it has."""
        self._is_aborted = True
        self._wake.set()
        await self._engine.abort(self._rid)

    async def interrupt(self) -> None:
        """The call under way comes back with what it has. The gate must be closed."""
        self._is_interrupted = True
        with contextlib.suppress(EngineError):  # the pause that follows aborts it too
            await self._engine.abort(self._rid)

    async def settle(self, timeout_s: float) -> None:
        """The call came back in time, or is called back to be sent again.

        One of which the client has seen a part stays: it comes back when the engine lets it.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), timeout_s)
            return
        if self._waiting is not None and not self._waiting.done():
            self._waiting.cancel()
            await asyncio.wait({self._waiting})

    def under_way(self) -> PartialGenerationNew | None:
        """What was sampled so far and may not be part of a turn yet."""
        sampled = self._so_far
        if self._episode_id is None or self._prompt_ids is None or sampled is None or not len(sampled.token_ids):
            return None
        action = Span(SpanKind.ACTION, 0, sampled.token_ids, sampled.logprobs, sampled.version_runs)
        spans = [Span(SpanKind.PROMPT, 0, self._prompt_ids), action]
        return PartialGenerationNew(self._episode_id, spans, self._temperature)

    def close(self) -> None:
        """What was sampled is a turn now, or nothing: it is no longer under way."""
        self._interrupter.forget(self)

    def _begin(self, input_ids: Int32Array, rid: str) -> None:
        self._rid, self._is_aborted = rid, False
        self._wake.clear()
        if self._so_far is None:
            self._prompt_ids = input_ids

    async def _is_let_in(self) -> bool:
        """True once the gate is open; False when the call was aborted before."""
        while not self._gate.is_set() and not self._is_aborted:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._gate, self._wake)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return not self._is_aborted

    @contextlib.asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        self._is_interrupted = False
        self._is_over.clear()
        try:
            yield
        finally:
            self._is_over.set()
            self._rid = new_rid()  # the server may still hold the call that was cut off under the old one

    async def _first(self, answer: Awaitable[T]) -> T | None:
        """What the engine answers first; None when an interruption called the call back before."""
        waiting = asyncio.ensure_future(answer)
        self._waiting = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._is_interrupted or (current is not None and current.cancelling()):
                raise
            return None

    def _is_sent_again(self, generation: Generation) -> bool:
        """Whether the call was cut off by an interruption before it had sampled anything."""
        is_empty = generation.finish_reason == "abort" and not len(generation.token_ids)
        return is_empty and self._is_interrupted and not self._is_aborted

    def _kept(self, piece: Generation) -> Generation:
        self._so_far = piece if self._so_far is None else join(self._so_far, piece)
        return piece


def _nothing(num_prompt_tokens: int) -> Generation:
    """What an aborted call gives that had not begun."""
    return Generation(np.empty(0, np.int32), np.empty(0, np.float32), (), "abort", num_prompt_tokens)
