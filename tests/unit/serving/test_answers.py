from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from online_agent.errors import EngineProtocolError, EngineRejected
from online_agent.serving.answers import alternatives_of, error_message, parse_generation, parse_version
from online_agent.types import VersionRun

ENGINE = "http://engine"


def answer(ids: list[int], **meta: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 9,
        "cached_tokens": 4,
        "num_retractions": 1,
        "weight_version": "7",
        "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
        "output_token_logprobs": [[-0.5, token_id, None] for token_id in ids],
    }
    return {"output_ids": ids, "meta_info": defaults | meta}


def test_an_answer_is_read_as_it_came() -> None:
    generation = parse_generation(answer([11, 12, 2]), ENGINE)
    assert generation.token_ids.tolist() == [11, 12, 2]
    assert generation.logprobs.tolist() == [-0.5, -0.5, -0.5]
    assert generation.version_runs == (VersionRun(7, 0, 3),)
    assert (generation.finish_reason, generation.misalignment) == ("stop", None)
    assert (generation.num_prompt_tokens, generation.num_cached_tokens, generation.num_retractions) == (9, 4, 1)


def test_c09_a_null_log_prob_stays_nan_and_is_named() -> None:
    triples = [[-0.5, 11, None], [None, 12, None]]
    generation = parse_generation(answer([11, 12], output_token_logprobs=triples), ENGINE)
    assert generation.misalignment == "http://engine, version 7: the log-prob at position 1 is null"
    assert generation.logprobs[0] == np.float32(-0.5)
    assert np.isnan(generation.logprobs[1])
    assert generation.token_ids.tolist() == [11, 12]


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        ({"output_token_logprobs": [[-0.5, 11, None]]}, "2 ids but 1 log-probs"),
        ({"output_token_logprobs": [[-0.5, 11, None], [-0.5, 13, None]]},
         "position 1 has id 12 but the log-prob of id 13"),
        ({"output_token_logprobs": None}, "the answer has no output_token_logprobs"),
        ({"output_token_logprobs": [[float("-inf"), 11, None], [-0.5, 12, None]]},
         "the log-prob at position 0 is -inf"),
        ({"weight_versions": None}, "weight versions cover 0 of 2 ids"),
        ({"weight_versions": [{"version": "default", "start": 0, "end": 2}]}, "weight versions cover 0 of 2 ids"),
        ({"weight_versions": [{"version": "7", "start": 1, "end": 2}]}, "weight versions leave a gap at position 0"),
        ({"weight_versions": [{"version": "7", "start": 0, "end": 1}]}, "weight versions cover 1 of 2 ids"),
        ({"weight_versions": [{"version": "7", "start": 0, "end": 3}]}, "weight versions cover 3 of 2 ids"),
        ({"completion_tokens": 3}, "3 tokens were sampled but 2 ids came"),
    ],
)  # fmt: skip
def test_what_does_not_line_up_is_said_and_the_ids_are_kept(meta: dict[str, Any], problem: str) -> None:
    generation = parse_generation(answer([11, 12], **meta), ENGINE)
    assert generation.misalignment == f"http://engine, version 7: {problem}"
    assert generation.token_ids.tolist() == [11, 12]


def test_empty_version_spans_are_left_out() -> None:
    spans = [
        {"version": "6", "start": 0, "end": 0},
        {"version": "7", "start": 0, "end": 1},
        {"version": "8", "start": 1, "end": 2},
    ]
    generation = parse_generation(answer([11, 12], weight_versions=spans), ENGINE)
    assert generation.version_runs == (VersionRun(7, 0, 1), VersionRun(8, 1, 2))
    assert generation.misalignment is None


def test_c10_null_log_probs_of_input_tokens_do_not_matter() -> None:
    generation = parse_generation(answer([11], input_token_logprobs=[[None, 5, None], [-1.0, 6, None]]), ENGINE)
    assert generation.misalignment is None


@pytest.mark.parametrize("body", [None, [], "text", {}, {"output_ids": [1]}, {"meta_info": {}, "output_ids": ["1"]},
                                  {"meta_info": {}, "output_ids": [True]}])  # fmt: skip
def test_an_answer_without_ids_is_an_error(body: Any) -> None:
    with pytest.raises(EngineProtocolError, match="no output_ids or no meta_info"):
        parse_generation(body, ENGINE)


@pytest.mark.parametrize(
    ("label", "version"),
    [("12", 12), ("0", 0), ("default", None), ("v7", None), ("-1", None), ("", None), (7, None), ("１２", None)],
)
def test_only_decimal_labels_are_versions(label: object, version: int | None) -> None:
    assert parse_version(label) == version


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too long"}},
        {"error": "too long"},
        {"object": "error", "message": "too long", "code": 400},
        {"success": False, "message": "too long"},
        "too long",
    ],
)
def test_every_error_shape_of_the_engine_gives_its_text(body: Any) -> None:
    assert error_message(body) == "too long"


def test_a_request_that_was_taken_in_and_then_refused_is_rejected_with_the_reason() -> None:
    refused = {"type": "abort", "message": "Failed to compile json grammar", "status_code": 400}
    with pytest.raises(EngineRejected, match="Failed to compile json grammar"):
        parse_generation(answer([], finish_reason=refused), ENGINE)


@pytest.mark.parametrize("status_code", [None, 503])
def test_an_abort_that_is_no_refusal_keeps_what_was_sampled(status_code: int | None) -> None:
    aborted = {"type": "abort", "message": "Aborted", "status_code": status_code}
    generation = parse_generation(answer([11], finish_reason=aborted), ENGINE)
    assert (generation.finish_reason, generation.token_ids.tolist()) == ("abort", [11])


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        ({"weight_versions": [1, 2]}, "weight versions cover 0 of 2 ids"),
        ({"weight_versions": [{"version": "7"}]}, "weight versions cover 0 of 2 ids"),
        ({"weight_versions": [{"version": "7", "start": "0", "end": None}]}, "weight versions cover 0 of 2 ids"),
        ({"output_token_logprobs": [[], []]}, "the answer has no output_token_logprobs"),
        ({"output_token_logprobs": [1, 2]}, "the answer has no output_token_logprobs"),
        ({"output_token_logprobs": [["x", 11, None], [-0.5, 12, None]]}, "the log-prob at position 0 is x"),
        ({"output_token_logprobs": [[-1e300, 11, None], [-0.5, 12, None]]}, "the log-prob at position 0 is -1e+300"),
    ],
)
def test_an_answer_whose_additions_have_another_shape_keeps_its_ids(meta: dict[str, Any], problem: str) -> None:
    generation = parse_generation(answer([11, 12], **meta), ENGINE)
    assert generation.token_ids.tolist() == [11, 12]
    assert generation.misalignment == f"http://engine, version 7: {problem}"


def test_counts_that_are_none_are_zero() -> None:
    odd = {"prompt_tokens": "many", "cached_tokens": [1], "num_retractions": -3, "output_top_logprobs": 1}
    generation = parse_generation(answer([11], **odd), ENGINE)
    assert (generation.num_prompt_tokens, generation.num_cached_tokens, generation.num_retractions) == (0, 0, 0)
    assert (generation.top_logprobs, generation.misalignment) == ((), None)


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**40, True, 1.0, None])
def test_what_cannot_be_an_id_is_no_answer(token_id: Any) -> None:
    with pytest.raises(EngineProtocolError, match="no output_ids"):
        parse_generation({"output_ids": [3, token_id], "meta_info": {}}, ENGINE)


def test_alternatives_that_are_none_are_left_out() -> None:
    triples = [
        [-0.5, 11, None],
        [None, 12, None],
        ["x", 13],
        [-1.0],
        4,
        [-2, 14, "b"],
        [-3.0, "15", None],
        [-4.0, -1, None],
        [-5.0, 2**31],
    ]
    assert alternatives_of(triples) == ((11, -0.5), (14, -2.0))
    assert alternatives_of(None) == alternatives_of(7) == ()
