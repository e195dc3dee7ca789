"""The served model as the loop sees it: ids in, one generation out, brief outages waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from online_agent.errors import Conflict, EngineError, EngineUnavailable
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import new_rid
from online_agent.telemetry.model_calls import answered, chat_span
from online_agent.types import Generation, Int32Array, Sampling

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 2.0
ABORT_TIMEOUT_S = 2.0
"""How long an aborted request may take to hand over what it has sampled."""


class Engine(Protocol):
    """The part of EngineClient that acting needs."""

    @property
    def max_sequence_tokens(self) -> int: ...

    async def generate(
        self,
        input_ids: Int32Array,
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        rid: str,
        *,
        experts_from: int = 0,
    ) -> Generation: ...

    async def abort(self, rid: str) -> None: ...


class CutShort(asyncio.CancelledError):
    """The turn was cancelled; ``generation`` is what had been sampled until then, if anything."""

    def __init__(self, generation: Generation | None) -> None:
        super().__init__()
        self.generation = generation


class Policy:
    """``pinned_version``: the one version this policy may act with. ``name`` and ``episode_id`` are for traces."""

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        pinned_version: int | None = None,
        *,
        name: str = "",
        episode_id: str | None = None,
    ) -> None:
        self._engine, self.renderer, self._pinned_version = engine, renderer, pinned_version
        self._name, self._episode_id = name, episode_id
        self._outage: EngineUnavailable | None = None

    @property
    def max_sequence_tokens(self) -> int:
        return self._engine.max_sequence_tokens

    def raise_for_outage(self) -> None:
        """Raises EngineUnavailable when the engine cannot be reached at the moment."""
        if self._outage is not None:
            raise self._outage

    async def sample(self, token_ids: Int32Array, sampling: Sampling, experts_from: int = 0) -> Generation:
        """One assistant turn. An engine that is restarting is asked again until the caller's deadline.

        The experts that it used come back for the tokens from ``experts_from`` on, where the engine returns them.
        Raises EngineRejected or EngineProtocolError, Conflict when another version than the pinned one answers, and
        CutShort with the partial turn when cancelled.
        """
        with chat_span(self._name, sampling, self._episode_id) as span:
            generation = await self._sampled(token_ids, sampling, experts_from)
            answered(span, self._name, [generation], [generation.finish_reason], generation.num_prompt_tokens)
        return generation

    async def _sampled(self, token_ids: Int32Array, sampling: Sampling, experts_from: int) -> Generation:
        delay_s = FIRST_RETRY_S
        while True:
            try:
                generation = await self._ask(token_ids, sampling, experts_from)
                self._outage = None
                self._check_version(generation)
                return generation
            except EngineUnavailable as error:
                self._outage = error
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)

    def _check_version(self, generation: Generation) -> None:
        versions = {run.version for run in generation.version_runs}
        if self._pinned_version is not None and versions - {self._pinned_version}:
            raise Conflict(f"version {max(versions)} answered an episode pinned to version {self._pinned_version}")

    async def _ask(self, token_ids: Int32Array, sampling: Sampling, experts_from: int) -> Generation:
        rid, stop_token_ids = new_rid(), self.renderer.stop_token_ids
        generating = self._engine.generate(token_ids, sampling, stop_token_ids, rid, experts_from=experts_from)
        call = asyncio.ensure_future(generating)
        try:
            generation = await asyncio.shield(call)
        except asyncio.CancelledError:
            raise CutShort(await self._cut_short(call, rid)) from None
        if generation.finish_reason == "abort":
            raise EngineUnavailable("the engine aborted the request")
        return generation

    async def _cut_short(self, call: asyncio.Future[Generation], rid: str) -> Generation | None:
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self._engine.abort(rid)
                generation = await call
                return generation if len(generation.token_ids) else None
        except (EngineError, TimeoutError):
            call.cancel()
            return None
