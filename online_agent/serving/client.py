"""One SGLang server over HTTP: generate with token ids in and out, and change its weights.

Invariants
- Nothing is sent that is known to kill or confuse the server: an id outside the vocabulary, a prompt beyond the
  context, a request id that is a prefix of another (aborts match by prefix).
- A call that is cancelled or times out is aborted on the server too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from online_agent.errors import EngineProtocolError, EngineRejected, EngineUnavailable
from online_agent.serving.answers import parse_generation, parse_version
from online_agent.serving.call_parsing import parsed_calls
from online_agent.serving.experts import ExpertsAsked
from online_agent.serving.streams import StreamAssembler, StreamPart
from online_agent.serving.transport import EngineTransport
from online_agent.types import Generation, Int32Array, Sampling, ToolCall
from online_agent.weights.experts import ExpertShape

RID_LENGTH = 32
CONTEXT_MARGIN = 8
"""SGLang 0.5.23 keeps the last seven positions of the context back and silently shortens answers that need them."""
ADMIN_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 25.0
"""The server itself gives up on its health generation after 20 s."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    model_path: str
    weight_version: int | None


@dataclass(frozen=True, slots=True)
class EngineLoads:
    num_running: int
    num_waiting: int


def new_rid() -> str:
    """A request id of the one length this client accepts."""
    return uuid.uuid4().hex


class EngineClient(EngineTransport):
    """Raises EngineUnavailable (not reachable, worth a retry), EngineRejected (the request itself is wrong) or
    EngineProtocolError (an answer without ids).

    ``vocab_size`` and ``context_length`` bound what ``generate`` sends; a client made without them only administers.
    With ``experts`` it asks for those that the engine used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        request_timeout_s: float = 600.0,
        *,
        vocab_size: int = 0,
        context_length: int = 0,
        experts: ExpertShape | None = None,
        max_connections: int = 256,
    ) -> None:
        super().__init__(base_url, api_key, request_timeout_s, max_connections)
        self._vocab_size, self._context_length = vocab_size, context_length
        self._experts = experts

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return max(0, self._context_length - CONTEXT_MARGIN)

    @property
    def records_experts(self) -> bool:
        """Whether generations come with the experts that the engine used."""
        return self._experts is not None

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
        """What the model samples after ``input_ids``, one log-prob and one weight version per id.

        The sampled stop id is part of the answer. ``finish_reason`` is ``stop``, ``length`` or ``abort``. ``more`` are
        sampling parameters under the engine's own names. Experts are returned for the tokens from ``experts_from`` on.
        """
        self._check_request(input_ids, sampling, rid)
        asked = None if self._experts is None else ExpertsAsked(self._experts, experts_from)
        body, version = await self._addressed(
            _generate_body(input_ids, sampling, stop_token_ids, rid, more, num_top_logprobs, asked)
        )
        try:
            answer = await self._post("/generate", body, self._request_timeout_s)
        except (asyncio.CancelledError, EngineUnavailable):
            await asyncio.shield(self._abort_quietly(rid))
            raise
        return parse_generation(answer, self.base_url, version, asked)

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
        """The same as ``generate``, in parts as they are sampled; the last part holds the whole generation.

        Raises EngineProtocolError when the stream ends before its end. A caller that stops reading (or is cancelled)
        aborts the request; one that calls ``abort`` and reads on gets what was sampled until then.
        """
        self._check_request(input_ids, sampling, rid)
        asked = None if self._experts is None else ExpertsAsked(self._experts, experts_from)
        body, version = await self._addressed(
            {**_generate_body(input_ids, sampling, stop_token_ids, rid, more, num_top_logprobs, asked), "stream": True}
        )
        assembler = StreamAssembler(self.base_url, version, asked)
        try:
            async for data in self._events("/generate", orjson.dumps(body)):
                yield assembler.add(data)
                if assembler.is_finished:
                    return
        finally:
            if not assembler.is_finished:
                await asyncio.shield(self._abort_quietly(rid))
        raise EngineProtocolError(
            f"{self.base_url} ended the stream after {len(assembler.token_ids)} tokens without its end"
        )

    async def abort(self, rid: str) -> None:
        """The request ends with what it has; unknown ids are no error."""
        if len(rid) != RID_LENGTH:
            raise EngineRejected(f"request id {rid!r} must have {RID_LENGTH} characters: aborts match by prefix")
        await self._post("/abort_request", {"rid": rid}, PROBE_TIMEOUT_S)

    async def parse_calls(self, text: str, parser: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
        """The tool calls that the server's parser of that name reads in the text; see ``call_parsing``."""
        body = {"text": text, "tool_call_parser": parser, "tools": tools}
        return parsed_calls(await self._post("/parse_function_call", body, PROBE_TIMEOUT_S), self.base_url)

    async def pause(self, mode: str = "retract") -> None:
        """Nothing is generated until ``resume``; with ``retract`` requests under way continue then, recomputed."""
        await self._post("/pause_generation", {"mode": mode}, ADMIN_TIMEOUT_S)

    async def resume(self) -> None:
        await self._post("/continue_generation", {}, ADMIN_TIMEOUT_S)

    async def flush_cache(self) -> bool:
        """Whether the prefix cache is empty now; refused while requests run."""
        try:
            await self._post("/flush_cache", {}, ADMIN_TIMEOUT_S)
        except EngineRejected:
            return False
        return True

    async def update_weights(self, path: Path, version: int, timeout_s: float = ADMIN_TIMEOUT_S) -> None:
        """The server runs the weights of the directory under ``version``. Raises EngineRejected with its reason."""
        body = {"model_path": str(path), "weight_version": str(version)}
        answer = await self._post("/update_weights_from_disk", body, timeout_s)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise EngineRejected(f"{self.base_url} did not load {path}: {answer}")

    async def checksums(self) -> dict[str, str]:
        """One hash per served parameter: 16 hex digits of its bytes as they lie in the server's memory."""
        answer = await self._post("/weights_checker", {"action": "checksum"}, ADMIN_TIMEOUT_S)
        try:
            ranks = answer["ranks"]
            if len(ranks) == 1:
                return dict(ranks[0]["checksums"])
            return {
                f"rank {i}: {name}": value for i, rank in enumerate(ranks) for name, value in rank["checksums"].items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise EngineProtocolError(f"{self.base_url}: the answer holds no checksums: {answer}") from error

    async def model_info(self) -> ModelInfo:
        answer = await self._get("/model_info", PROBE_TIMEOUT_S)
        if not isinstance(answer, dict):
            raise EngineProtocolError(f"{self.base_url}: model_info is not an object")
        return ModelInfo(str(answer.get("model_path")), parse_version(answer.get("weight_version")))

    async def is_healthy(self) -> bool:
        """Whether the server generates now. False during a pause of more than 20 s: see readiness.HealthWatch."""
        try:
            await self._get("/health", HEALTH_TIMEOUT_S)
        except EngineUnavailable:
            return False
        return True

    async def loads(self) -> EngineLoads:
        answer = await self._get("/v1/loads", PROBE_TIMEOUT_S)
        try:
            ranks = answer["loads"]
            return EngineLoads(
                num_running=sum(int(rank["num_running_reqs"]) for rank in ranks),
                num_waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EngineProtocolError(f"{self.base_url}: the answer holds no loads") from error

    def _check_request(self, input_ids: Int32Array, sampling: Sampling, rid: str) -> None:
        if len(rid) != RID_LENGTH:
            raise EngineRejected(f"request id {rid!r} must have {RID_LENGTH} characters: aborts match by prefix")
        if not self._vocab_size or not self._context_length:
            raise EngineRejected("this client was made without vocab_size and context_length")
        if not len(input_ids):
            raise EngineRejected("the prompt is empty")
        outside = np.flatnonzero((input_ids < 0) | (input_ids >= self._vocab_size))
        if len(outside):
            at = int(outside[0])
            raise EngineRejected(
                f"token id {int(input_ids[at])} at position {at} is outside the vocabulary of {self._vocab_size}"
            )
        if len(input_ids) + sampling.max_new_tokens > self.max_sequence_tokens:
            raise EngineRejected(
                f"{len(input_ids)} prompt tokens and {sampling.max_new_tokens} new ones exceed the context of "
                f"{self.max_sequence_tokens}"
            )

    async def _addressed(self, body: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The request, naming who is to answer it, and the version that will, where that is known beforehand."""
        return body, None

    async def _abort_quietly(self, rid: str) -> None:
        try:
            await self.abort(rid)
        except (EngineUnavailable, EngineRejected):
            return  # a server that cannot be reached runs nothing of ours


def _generate_body(
    input_ids: Int32Array,
    sampling: Sampling,
    stop_token_ids: Sequence[int],
    rid: str,
    more: Mapping[str, Any] | None,
    num_top_logprobs: int,
    experts: ExpertsAsked | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": input_ids.tolist(),
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(stop_token_ids),
            **(more or {}),
        },
        "return_logprob": True,
    }
    if experts is not None:
        body |= {"return_routed_experts": True, "routed_experts_start_len": experts.first_token}
    return {**body, "top_logprobs_num": num_top_logprobs} if num_top_logprobs else body
