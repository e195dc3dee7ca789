"""The engine as one episode sees it: a generation that the engine was paused in goes on where it was cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from online_agent.agent.generations import join
from online_agent.agent.interruptible_calls import InterruptibleCalls, nothing
from online_agent.agent.policy import Engine
from online_agent.serving.client import new_rid
from online_agent.store.records import PartialGenerationNew
from online_agent.types import Generation, Int32Array, Sampling, Span, SpanKind


class InterruptibleEngine(InterruptibleCalls):
    """The engine as one episode sees it. Calls come one after another."""

    def __init__(self, episode_id: str, engine: Engine, gate: asyncio.Event) -> None:
        super().__init__(engine, gate)
        self._episode_id, self._engine = episode_id, engine
        self._prompt_ids: Int32Array | None = None
        self._so_far: Generation | None = None

    @property
    def max_sequence_tokens(self) -> int:
        return self._engine.max_sequence_tokens

    @property
    def is_calling(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    async def generate(
        self,
        input_ids: Int32Array,
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        rid: str,
        *,
        experts_from: int = 0,
    ) -> Generation:
        """As the engine's; interruptions do not show, except in the version runs."""
        self._begin_call(rid)
        self._prompt_ids, self._so_far = input_ids.copy(), None
        while True:
            if not await self._is_let_in():
                return self._so_far or nothing(len(input_ids))
            piece = await self._piece(sampling, stop_token_ids, experts_from)
            self._rid = new_rid()  # the server may still hold the call that was cut off under the old one
            if piece is None:
                continue
            self._so_far = piece if self._so_far is None else join(self._so_far, piece)
            if piece.finish_reason != "abort" or self._is_aborted or not self._is_interrupted:
                return self._so_far
            if len(self._so_far.token_ids) >= sampling.max_new_tokens:
                return replace(self._so_far, finish_reason="length")

    async def settle(self, timeout_s: float) -> None:
        """No call is under way: it came back in time, or is called back to be sent again."""
        if self._waiting is not None:
            await asyncio.wait({self._waiting}, timeout=timeout_s)
            await self._call_back()

    def under_way(self) -> PartialGenerationNew | None:
        """What was sampled last and may not be part of a turn yet."""
        if self._prompt_ids is None or self._so_far is None or not len(self._so_far.token_ids):
            return None
        sampled = self._so_far
        action = Span(SpanKind.ACTION, 0, sampled.token_ids, sampled.logprobs, sampled.version_runs)
        return PartialGenerationNew(self._episode_id, [Span(SpanKind.PROMPT, 0, self._prompt_ids), action])

    async def _piece(self, sampling: Sampling, stop_token_ids: Sequence[int], experts_from: int) -> Generation | None:
        """The next piece; None when an interruption called the call back before it had begun."""
        assert self._prompt_ids is not None
        before = np.empty(0, np.int32) if self._so_far is None else self._so_far.token_ids
        if self._so_far is not None and self._so_far.routed_experts is not None:
            experts_from += len(self._so_far.routed_experts)
        rest = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(before))
        ids = np.concatenate([self._prompt_ids, before])
        self._is_interrupted = False
        return await self._first(self._engine.generate(ids, rest, stop_token_ids, self._rid, experts_from=experts_from))
