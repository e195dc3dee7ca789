"""The engine as one episode sees it: a generation that the engine was paused in goes on where it was cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from online_agent.agent.generations import join
from online_agent.agent.policy import Engine
from online_agent.errors import EngineError
from online_agent.serving.client import new_rid
from online_agent.store.records import PartialGenerationNew
from online_agent.types import Generation, Int32Array, Sampling, Span, SpanKind


class InterruptibleEngine:
    """The engine as one episode sees it. Calls come one after another."""

    def __init__(self, episode_id: str, engine: Engine, gate: asyncio.Event) -> None:
        self._episode_id, self._engine, self._gate = episode_id, engine, gate
        self._call: asyncio.Task[Generation] | None = None
        self._rid = ""
        self._is_interrupted = self._is_aborted = False
        self._wake = asyncio.Event()
        self._prompt_ids: Int32Array | None = None
        self._so_far: Generation | None = None

    @property
    def max_sequence_tokens(self) -> int:
        return self._engine.max_sequence_tokens

    @property
    def is_calling(self) -> bool:
        return self._call is not None and not self._call.done()

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
        self._rid, self._is_aborted = rid, False
        self._wake.clear()
        self._prompt_ids, self._so_far = input_ids.copy(), None
        while True:
            await self._until_open()
            if self._is_aborted:
                return self._so_far or _nothing(len(input_ids))
            piece = await self._piece(sampling, stop_token_ids, experts_from)
            self._rid = new_rid()  # the server may still hold the call that was cut off under the old one
            if piece is None:
                continue
            self._so_far = piece if self._so_far is None else join(self._so_far, piece)
            if piece.finish_reason != "abort" or self._is_aborted or not self._is_interrupted:
                return self._so_far
            if len(self._so_far.token_ids) >= sampling.max_new_tokens:
                return replace(self._so_far, finish_reason="length")

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
        """No call is under way: it came back in time, or is called back to be sent again."""
        call = self._call
        if call is not None and (await asyncio.wait({call}, timeout=timeout_s))[1]:
            call.cancel()
            await asyncio.wait({call})

    def under_way(self) -> PartialGenerationNew | None:
        """What was sampled last and may not be part of a turn yet."""
        if self._prompt_ids is None or self._so_far is None or not len(self._so_far.token_ids):
            return None
        sampled = self._so_far
        action = Span(SpanKind.ACTION, 0, sampled.token_ids, sampled.logprobs, sampled.version_runs)
        return PartialGenerationNew(self._episode_id, [Span(SpanKind.PROMPT, 0, self._prompt_ids), action])

    async def _until_open(self) -> None:
        while not self._gate.is_set() and not self._is_aborted:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._gate, self._wake)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _piece(self, sampling: Sampling, stop_token_ids: Sequence[int], experts_from: int) -> Generation | None:
        """The next piece; None when an interruption called the call back before it had begun."""
        assert self._prompt_ids is not None
        before = np.empty(0, np.int32) if self._so_far is None else self._so_far.token_ids
        if self._so_far is not None and self._so_far.routed_experts is not None:
            experts_from += len(self._so_far.routed_experts)
        rest = replace(sampling, max_new_tokens=sampling.max_new_tokens - len(before))
        ids = np.concatenate([self._prompt_ids, before])
        self._is_interrupted = False
        self._call = asyncio.ensure_future(
            self._engine.generate(ids, rest, stop_token_ids, self._rid, experts_from=experts_from)
        )
        try:
            return await self._call
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._is_interrupted or (current is not None and current.cancelling()):
                raise
            return None


def _nothing(num_prompt_tokens: int) -> Generation:
    """What an aborted call gives that had not begun."""
    return Generation(np.empty(0, np.int32), np.empty(0, np.float32), (), "abort", num_prompt_tokens)
