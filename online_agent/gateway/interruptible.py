"""The engine as one choice of a client's answer sees it, where the learner interrupts: held at the door in a pause, cut
off by one, and what it has sampled so far is known.

The choice goes on by itself from the ids it had when a call comes back cut off (``ChoiceSampler``); what had not begun
is sent again from here. A client that streams sees nothing but a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from online_agent.agent.generations import join
from online_agent.agent.interruptible_calls import InterruptibleCalls, nothing
from online_agent.agent.interruption import Interrupter
from online_agent.gateway.sampler import Engine
from online_agent.serving.client import new_rid
from online_agent.serving.streams import StreamPart
from online_agent.store.records import PartialGenerationNew
from online_agent.types import Generation, Int32Array, Sampling, Span, SpanKind


class InterruptibleChoice(InterruptibleCalls):
    """An ``Engine`` for the calls of one choice, which come one after another. ``episode_id`` is None for an answer
    that is not stored: it is held and cut off like any other, and nothing of it is scored.
    """

    def __init__(self, engine: Engine, interrupter: Interrupter, episode_id: str | None, temperature: float) -> None:
        super().__init__(engine, interrupter.gate)
        self._engine = engine
        self._interrupter, self._episode_id, self._temperature = interrupter, episode_id, temperature
        self._is_over = asyncio.Event()
        self._is_over.set()
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
        return nothing(len(input_ids))

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
        yield StreamPart([], [], [], nothing(len(input_ids)))

    async def settle(self, timeout_s: float) -> None:
        """The call came back in time, or is called back to be sent again.

        One of which the client has seen a part stays: it comes back when the engine lets it.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), timeout_s)
            return
        await self._call_back()

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
        self._begin_call(rid)
        if self._so_far is None:
            self._prompt_ids = input_ids

    @contextlib.asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        self._is_interrupted = False
        self._is_over.clear()
        try:
            yield
        finally:
            self._is_over.set()
            self._rid = new_rid()  # the server may still hold the call that was cut off under the old one

    def _is_sent_again(self, generation: Generation) -> bool:
        """Whether the call was cut off by an interruption before it had sampled anything."""
        is_empty = generation.finish_reason == "abort" and not len(generation.token_ids)
        return is_empty and self._is_interrupted and not self._is_aborted

    def _kept(self, piece: Generation) -> Generation:
        self._so_far = piece if self._so_far is None else join(self._so_far, piece)
        return piece
