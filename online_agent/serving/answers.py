"""Reads the engine's answers exactly: what does not line up is reported, never repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np

from online_agent.errors import EngineProtocolError, EngineRejected
from online_agent.serving.experts import ExpertsAsked, parse_experts
from online_agent.types import Float32Array, Generation, Int32Array, VersionRun


def parse_generation(
    answer: Any, engine: str, version: int | None = None, experts: ExpertsAsked | None = None
) -> Generation:
    """The generation in an answer of ``/generate`` made with ``return_logprob``.

    Ids are always kept, so that the caller still gets its text. A log-prob that the engine sent as null (its way of
    writing NaN and infinities) stays NaN; counts that differ stay different; ``misalignment`` then says which
    engine, version and position. A ``version`` known beforehand made every token, whatever label the engine bore
    meanwhile. Raises EngineProtocolError when there are no ids to keep, EngineRejected for a request that was taken
    in and then refused (a schema that its grammar cannot follow).
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    ids = answer.get("output_ids") if isinstance(answer, dict) else None
    if not isinstance(meta, dict) or not _is_list_of_ints(ids):
        raise EngineProtocolError(f"{engine}: the answer has no output_ids or no meta_info")
    finish = meta.get("finish_reason")
    _raise_if_refused(finish, engine)
    token_ids = np.asarray(ids, np.int32)
    logprobs, problem = _read_logprobs(meta.get("output_token_logprobs"), token_ids)
    runs = _read_version_runs(meta) if version is None else _one_run(version, len(token_ids))
    problem = problem or _gap_in(runs, len(token_ids))
    num_prompt_tokens = int(meta.get("prompt_tokens") or 0)
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        version_runs=runs,
        finish_reason=str(finish.get("type")) if isinstance(finish, dict) else "unknown",
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=int(meta.get("cached_tokens") or 0),
        num_retractions=int(meta.get("num_retractions") or 0),
        top_logprobs=tuple(meta.get("output_top_logprobs") or ()),
        misalignment=problem and f"{engine}, version {meta.get('weight_version')}: {problem}",
        routed_experts=None if experts is None else parse_experts(meta, experts, num_prompt_tokens + len(token_ids)),
    )


def _raise_if_refused(finish: Any, engine: str) -> None:
    """A refusal comes as an abort with the status it would have had; an abort without one is a pause or our own."""
    if isinstance(finish, dict) and finish.get("type") == "abort":
        status = finish.get("status_code")
        if isinstance(status, int) and HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise EngineRejected(f"{engine}: {finish.get('message')}")


def parse_version(label: Any) -> int | None:
    """The decimal version number that we gave as a label, or None for anything else."""
    return int(label) if isinstance(label, str) and label.isascii() and label.isdigit() else None


def error_message(body: Any) -> str:
    """The text in any of the engine's error shapes."""
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            error = error.get("message", error)
        return str(error)
    return str(body)


def _read_logprobs(triples: Any, token_ids: Int32Array) -> tuple[Float32Array, str | None]:
    if not isinstance(triples, list) or not all(isinstance(t, list | tuple) and len(t) >= 2 for t in triples):
        return np.empty(0, np.float32), "the answer has no output_token_logprobs"
    values = [triple[0] for triple in triples]
    logprobs = np.asarray([_number_or_nan(value) for value in values], np.float32)
    if len(triples) != len(token_ids):
        return logprobs, f"{len(token_ids)} ids but {len(triples)} log-probs"
    for position, (triple, token_id) in enumerate(zip(triples, token_ids.tolist(), strict=True)):
        if triple[1] != token_id:
            return logprobs, f"position {position} has id {token_id} but the log-prob of id {triple[1]}"
    bad = np.flatnonzero(~np.isfinite(logprobs))
    if len(bad):
        return logprobs, f"the log-prob at position {int(bad[0])} is {_json(values[int(bad[0])])}"
    return logprobs, None


def _read_version_runs(meta: Mapping[str, Any]) -> tuple[VersionRun, ...]:
    spans = meta.get("weight_versions")
    if not isinstance(spans, list):
        return ()
    runs: list[VersionRun] = []
    for span in spans:
        version = parse_version(span.get("version"))
        if version is None:
            return ()
        if span["end"] > span["start"]:
            runs.append(VersionRun(version, int(span["start"]), int(span["end"])))
    return tuple(runs)


def _one_run(version: int, num_tokens: int) -> tuple[VersionRun, ...]:
    return (VersionRun(version, 0, num_tokens),) if num_tokens else ()


def _gap_in(runs: Sequence[VersionRun], num_tokens: int) -> str | None:
    position = 0
    for run in runs:
        if run.start != position:
            return f"weight versions leave a gap at position {position}"
        position = run.end
    return None if position == num_tokens else f"weight versions cover {position} of {num_tokens} ids"


def _number_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _json(value: Any) -> str:
    return "null" if value is None else str(value)


def _is_list_of_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)
