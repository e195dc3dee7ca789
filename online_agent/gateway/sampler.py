"""One choice of an answer: sampled by the engine, read as it comes, ended by the client's rules or its leaving."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from online_agent.agent.generations import join
from online_agent.errors import EngineProtocolError, EngineRejected, EngineUnavailable
from online_agent.gateway.answer_reader import AnswerReader, AnswerText
from online_agent.gateway.calls import Finish, TokenLogprob
from online_agent.gateway.markup import Fragment
from online_agent.serving.answers import alternatives_of, logprob_of
from online_agent.serving.client import new_rid
from online_agent.serving.streams import StreamPart
from online_agent.telemetry.logging import get_logger
from online_agent.types import Generation, Int32Array, RoutedExperts, Sampling, Span, SpanKind, ToolCall, VersionRun

log = get_logger(__name__)

CUT_TIMEOUT_S = 1.5
"""How long an aborted request may take to hand over what it has sampled; then it is dropped."""
RETRY_S = 0.2
PARSE_WAIT_S = 2.0
"""How long a parser that does not answer is asked again; then the calls stay text."""


class Engine(Protocol):
    """The part of EngineClient that answering needs."""

    @property
    def max_sequence_tokens(self) -> int: ...

    @property
    def records_experts(self) -> bool: ...

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
    ) -> Generation: ...

    def generate_stream(
        self,
        input_ids: Int32Array,
        sampling: Sampling,
        stop_token_ids: Sequence[int],
        rid: str,
        *,
        more: Mapping[str, Any] | None = None,
        num_top_logprobs: int = 0,
        experts_from: int = 0,
    ) -> AsyncIterator[StreamPart]: ...

    async def abort(self, rid: str) -> None: ...


ParseCalls = Callable[[str], Awaitable[Sequence[ToolCall]]]


@dataclass(frozen=True, slots=True)
class EngineAsk:
    """What the engine is asked for. ``is_streamed``: part by part, for the client or to stop early. ``parse``: its
    parser for the calls of the answer, None where they are read here.

    ``experts_from``: the experts of earlier ids are stored already.
    """

    input_ids: Int32Array
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    more: Mapping[str, Any]
    wants_logprobs: bool
    num_top_logprobs: int
    is_streamed: bool
    wait_s: float
    parse: ParseCalls | None = None
    experts_from: int = 0


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """``generation`` holds exactly the ids that the answer was read from."""

    generation: Generation
    answer: AnswerText
    finish: Finish
    logprobs: list[TokenLogprob]
    seconds: float


Emit = Callable[[list[Fragment], list[TokenLogprob]], None]


class ChoiceSampler:
    """``run`` once; ``leave`` when the client has gone. ``token_ids`` is what came in so far."""

    def __init__(self, engine: Engine, ask: EngineAsk, reader: AnswerReader, emit: Emit) -> None:
        self._engine, self._ask, self._reader, self._emit = engine, ask, reader, emit
        self._stops = frozenset(ask.stop_token_ids)
        self._rid = new_rid()
        self._pending: list[TokenLogprob] = []
        self._logprobs: list[TokenLogprob] = []
        self._has_left = False
        self._seen_logprobs: list[float] = []
        self.token_ids: list[int] = []
        self.answer = reader.answer

    async def run(self) -> SampledChoice:
        """The whole choice. Raises EngineError when the engine did not bring it to an end."""
        started = time.monotonic()
        generation = await self._generation(deadline=started + self._ask.wait_s)
        if not self._ask.is_streamed:
            self._take(generation.token_ids.tolist(), generation.logprobs.tolist(), generation.top_logprobs)
        is_cut = self._has_left
        self._tell(self._reader.end())
        self._tell(self._reader.finish(await self._read_calls()))
        kept = clipped(generation, self._reader.num_tokens) if self._reader.is_over else generation
        finish: Finish = "cancelled" if is_cut else self._finish(generation)
        return SampledChoice(kept, self._reader.answer, finish, self._logprobs, time.monotonic() - started)

    def unfinished(self) -> Span:
        """What came in of a choice without an end. Nobody said which version made it, so it can never be trained on."""
        return Span(
            SpanKind.ACTION, 0, np.asarray(self.token_ids, np.int32), np.asarray(self._seen_logprobs, np.float32)
        )

    async def leave(self) -> None:
        """The engine stops; ``run`` ends with what was sampled until then, or is cancelled after a moment."""
        self._has_left = True
        await self._abort()

    async def _generation(self, deadline: float) -> Generation:
        """The whole generation. One that the engine itself cut off is continued from the ids it had sampled."""
        done: Generation | None = None
        while True:
            ask = self._ask if done is None else continued(self._ask, done)
            try:
                part = await (self._streamed(ask) if ask.is_streamed else self._plain(ask))
            except EngineUnavailable:
                num_done = 0 if done is None else len(done.token_ids)
                is_torn = ask.is_streamed and len(self.token_ids) > num_done
                if is_torn or self._has_left or time.monotonic() > deadline:
                    raise
            else:
                whole = part if done is None else join(done, part)
                if part.finish_reason != "abort" or self._has_left or self._reader.is_over:
                    return whole
                if len(part.token_ids):
                    done, deadline = whole, time.monotonic() + self._ask.wait_s
                elif time.monotonic() > deadline:
                    raise EngineUnavailable("the engine aborts every answer", retry_after_s=1.0)
            await asyncio.sleep(RETRY_S)
            if self._has_left and done is not None:
                return done
            self._rid = new_rid()

    async def _read_calls(self) -> Sequence[ToolCall]:
        """What the engine's parser reads in the answer. Nobody needs it for a client that has left."""
        pending, parse = self._reader.pending, self._ask.parse
        deadline = time.monotonic() + PARSE_WAIT_S
        while pending and parse is not None and not self._has_left and time.monotonic() < deadline:
            try:
                return await parse(pending)
            except EngineUnavailable as error:
                log.warning("tool calls not parsed", reason=error.message)
                await asyncio.sleep(RETRY_S)
        return ()

    async def _plain(self, ask: EngineAsk) -> Generation:
        return await self._engine.generate(
            ask.input_ids,
            ask.sampling,
            ask.stop_token_ids,
            self._rid,
            more=ask.more,
            num_top_logprobs=ask.num_top_logprobs,
            experts_from=ask.experts_from,
        )

    async def _streamed(self, ask: EngineAsk) -> Generation:
        parts = self._engine.generate_stream(
            ask.input_ids,
            ask.sampling,
            ask.stop_token_ids,
            self._rid,
            more=ask.more,
            num_top_logprobs=ask.num_top_logprobs,
            experts_from=ask.experts_from,
        )
        async for part in parts:
            was_over = self._reader.is_over
            self._take(part.token_ids, [logprob_of(triple) for triple in part.logprobs], part.top_logprobs)
            if part.generation is not None:
                return part.generation
            if self._reader.is_over and not was_over:
                await self._abort()
        raise EngineProtocolError("the engine's stream has no end")

    async def _abort(self) -> None:
        try:
            await self._engine.abort(self._rid)
        except (EngineUnavailable, EngineRejected):
            return  # an engine that cannot be reached runs nothing of ours

    def _take(self, token_ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Any]) -> None:
        self.token_ids.extend(token_ids)
        self._seen_logprobs.extend(logprobs)
        before = self._reader.num_tokens
        fragments = self._reader.push(token_ids, is_whole=not self._ask.is_streamed)
        if self._ask.wants_logprobs:
            for index in range(self._reader.num_tokens - before):
                if token_ids[index] not in self._stops:
                    self._pending.append(_token_logprob(index, token_ids, logprobs, top))
        if fragments:
            self._tell(fragments)

    def _tell(self, fragments: list[Fragment]) -> None:
        if fragments or self._pending:
            self._emit(fragments, self._pending)
            self._logprobs += self._pending
            self._pending = []

    def _finish(self, generation: Generation) -> Finish:
        if self._reader.answer.stop_string is not None:
            return "stop_string"
        if generation.finish_reason == "length" and not self._reader.is_over:
            return "length"
        return "tool_calls" if self._reader.answer.calls else "stop"


def continued(ask: EngineAsk, done: Generation) -> EngineAsk:
    """What is asked for after the ids that were sampled already."""
    left = max(1, ask.sampling.max_new_tokens - len(done.token_ids))
    num_routed = 0 if done.routed_experts is None else len(done.routed_experts)
    return replace(
        ask,
        input_ids=np.concatenate([ask.input_ids, done.token_ids]),
        sampling=replace(ask.sampling, max_new_tokens=left),
        experts_from=ask.experts_from + num_routed,
    )


def clipped(generation: Generation, num_tokens: int) -> Generation:
    """The first ``num_tokens`` ids with all that belongs to them."""
    if num_tokens >= len(generation.token_ids):
        return generation
    runs = tuple(
        VersionRun(run.version, run.start, min(run.end, num_tokens))
        for run in generation.version_runs
        if run.start < num_tokens
    )
    return replace(
        generation,
        token_ids=generation.token_ids[:num_tokens],
        logprobs=generation.logprobs[:num_tokens],
        version_runs=runs,
        top_logprobs=generation.top_logprobs[:num_tokens],
        routed_experts=_clipped_experts(generation, num_tokens),
    )


def _clipped_experts(generation: Generation, num_tokens: int) -> RoutedExperts | None:
    """The rows up to the last but one of the ids that are kept: as many as if the engine had ended there."""
    rows = generation.routed_experts
    num_dropped = len(generation.token_ids) - num_tokens
    return None if rows is None or len(rows) < num_dropped else rows[: len(rows) - num_dropped]


def _token_logprob(index: int, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Any]) -> TokenLogprob:
    return TokenLogprob(
        token_id=ids[index],
        logprob=logprobs[index] if index < len(logprobs) else math.nan,
        top=alternatives_of(top[index]) if index < len(top) else (),
    )
