"""A streamed generation, put together from its events exactly as the plain answer would have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from online_agent.errors import EngineProtocolError, EngineRejected
from online_agent.serving.answers import error_message, is_list_of_ids, parse_generation
from online_agent.serving.experts import ExpertsAsked
from online_agent.types import Generation

_PER_TOKEN = ("output_token_logprobs", "output_top_logprobs")
END = b"[DONE]"


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What one event added: ids, the engine's log-prob triples and its alternatives, one each per id.

    ``generation`` is the whole of it, on the last part only.
    """

    token_ids: list[int]
    logprobs: list[Any]
    top_logprobs: list[Any]
    generation: Generation | None = None


class StreamAssembler:
    """Takes the data of each event. The server may send each event whole up to then, or only what is new in it.

    Raises EngineRejected when an event is an error, EngineProtocolError for what no engine of ours sends.
    """

    def __init__(self, engine: str, version: int | None = None, experts: ExpertsAsked | None = None) -> None:
        """``version`` and ``experts`` as in ``parse_generation``."""
        self._engine, self._version, self._experts = engine, version, experts
        self._ids: list[int] = []
        self._per_token: dict[str, list[Any]] = {key: [] for key in _PER_TOKEN}
        self.is_finished = False

    @property
    def token_ids(self) -> list[int]:
        """Everything sampled so far."""
        return self._ids

    def add(self, data: bytes) -> StreamPart:
        event = self._read(data)
        meta, ids = event["meta_info"], event["output_ids"]
        is_whole = len(ids) == meta.get("completion_tokens")
        new_ids = ids[len(self._ids) :] if is_whole else ids
        new = {key: self._new_of(meta, key, is_whole) for key in _PER_TOKEN}
        self._ids.extend(new_ids)
        for key, values in new.items():
            self._per_token[key].extend(values)
        generation = self._finish(meta) if isinstance(meta.get("finish_reason"), dict) else None
        return StreamPart(new_ids, new["output_token_logprobs"], new["output_top_logprobs"], generation)

    def _new_of(self, meta: dict[str, Any], key: str, is_whole: bool) -> list[Any]:
        values = meta.get(key)
        if not isinstance(values, list):
            return []
        return values[len(self._per_token[key]) :] if is_whole else values

    def _finish(self, meta: dict[str, Any]) -> Generation:
        self.is_finished = True
        whole = {**meta, **{key: values for key, values in self._per_token.items() if values or key in meta}}
        answer = {"output_ids": self._ids, "meta_info": whole}
        return parse_generation(answer, self._engine, self._version, self._experts)

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise EngineProtocolError(f"{self._engine}: an event of the stream is not JSON") from error
        if isinstance(event, dict) and "error" in event:
            raise EngineRejected(f"{self._engine}: {error_message(event)}")
        if not isinstance(event, dict) or not isinstance(event.get("meta_info"), dict):
            raise EngineProtocolError(f"{self._engine}: an event of the stream has no meta_info")
        if not is_list_of_ids(event.get("output_ids")):
            raise EngineProtocolError(f"{self._engine}: an event of the stream has no output_ids")
        return event
