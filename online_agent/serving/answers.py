"""Reads the engine's answers exactly: what does not line up is reported, never repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np

from online_agent.errors import EngineProtocolError, EngineRejected
from online_agent.serving.experts import ExpertsAsked, parse_experts
from online_agent.types import Float32Array, Generation, Int32Array, VersionRun

_MAX_IDS = 2**31
"""Ids are stored as int32."""


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
    if not isinstance(meta, dict) or not is_list_of_ids(ids):
        raise EngineProtocolError(f"{engine}: the answer has no output_ids or no meta_info")
    finish = meta.get("finish_reason")
    _raise_if_refused(finish, engine)
    token_ids = np.asarray(ids, np.int32)
    logprobs, problem = _read_logprobs(meta.get("output_token_logprobs"), token_ids)
    runs = _read_version_runs(meta) if version is None else _one_run(version, len(token_ids))
    problem = problem or _gap_in(runs, len(token_ids)) or _lost(meta, len(token_ids))
    num_prompt_tokens = _count(meta.get("prompt_tokens"))
    return Generation(
        token_ids=token_ids,
        logprobs=logprobs,
        version_runs=runs,
        finish_reason=str(finish.get("type")) if isinstance(finish, dict) else "unknown",
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=_count(meta.get("cached_tokens")),
        num_retractions=_count(meta.get("num_retractions")),
        top_logprobs=tuple(_list(meta.get("output_top_logprobs"))),
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
    if not isinstance(triples, list) or not _are_all(triples, list, tuple) or min(map(len, triples), default=2) < 2:
        return np.empty(0, np.float32), "the answer has no output_token_logprobs"
    values, of_ids, ids = [triple[0] for triple in triples], [triple[1] for triple in triples], token_ids.tolist()
    are_numbers = _are_all(values, float)
    with np.errstate(over="ignore"):  # becomes infinite, and is told as bad below
        logprobs = np.asarray(values if are_numbers else list(map(logprob_of, triples)), np.float32)
    if len(triples) != len(token_ids):
        return logprobs, f"{len(token_ids)} ids but {len(triples)} log-probs"
    if of_ids != ids:
        position = next(at for at, (theirs, own) in enumerate(zip(of_ids, ids, strict=True)) if theirs != own)
        return logprobs, f"position {position} has id {ids[position]} but the log-prob of id {of_ids[position]}"
    bad = np.flatnonzero(~np.isfinite(logprobs))
    if len(bad):
        return logprobs, f"the log-prob at position {int(bad[0])} is {_json(values[int(bad[0])])}"
    return logprobs, None


def _read_version_runs(meta: Mapping[str, Any]) -> tuple[VersionRun, ...]:
    spans = meta.get("weight_versions")
    if not isinstance(spans, list):
        return ()
    runs = [_version_run(span) for span in spans]
    return tuple(run for run in runs if run is not None and run.end > run.start) if None not in runs else ()


def _version_run(span: Any) -> VersionRun | None:
    """None for anything but our version number with the positions that it made."""
    if not isinstance(span, dict):
        return None
    version, start, end = parse_version(span.get("version")), span.get("start"), span.get("end")
    if version is None or type(start) is not int or type(end) is not int:
        return None
    return VersionRun(version, start, end)


def _one_run(version: int, num_tokens: int) -> tuple[VersionRun, ...]:
    return (VersionRun(version, 0, num_tokens),) if num_tokens else ()


def _lost(meta: Mapping[str, Any], num_tokens: int) -> str | None:
    """Part of a stream may be lost, or come twice, and what is left line up with itself."""
    num_sampled = meta.get("completion_tokens", num_tokens)
    return None if num_sampled == num_tokens else f"{num_sampled} tokens were sampled but {num_tokens} ids came"


def _gap_in(runs: Sequence[VersionRun], num_tokens: int) -> str | None:
    position = 0
    for run in runs:
        if run.start != position:
            return f"weight versions leave a gap at position {position}"
        position = run.end
    return None if position == num_tokens else f"weight versions cover {position} of {num_tokens} ids"


def logprob_of(triple: Any) -> float:
    """The number in one of the engine's triples of log-prob, id and text; NaN where there is none."""
    value = triple[0] if isinstance(triple, list | tuple) and triple else None
    return float(value) if isinstance(value, int | float) else float("nan")


def alternatives_of(triples: Any) -> tuple[tuple[int, float], ...]:
    """The ids that could have stood in one place, with their log-probs; what is none is left out."""
    return tuple(
        (triple[1], float(triple[0]))
        for triple in _list(triples)
        if isinstance(triple, list | tuple)
        and len(triple) >= 2
        and isinstance(triple[0], int | float)
        and is_list_of_ids([triple[1]])
    )


def _json(value: Any) -> str:
    return "null" if value is None else str(value)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _count(value: Any) -> int:
    """A number that is told and nothing depends on: 0 where the engine gave none."""
    return value if type(value) is int and value > 0 else 0


def is_list_of_ids(value: Any) -> bool:
    if not isinstance(value, list) or not _are_all(value, int):
        return False
    return not value or (min(value) >= 0 and max(value) < _MAX_IDS)


def _are_all(values: Sequence[Any], *types: type) -> bool:
    """Whether each is of one of the types itself, no subclass; at the speed of C, since answers have thousands."""
    return set(map(type, values)).issubset(types)
