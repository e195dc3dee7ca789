from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_agent.config.serving import EngineSettings
from online_agent.errors import ConfigError
from online_agent.serving.answers import parse_generation
from online_agent.serving.experts import ExpertsAsked, parse_experts, recorded_experts
from online_agent.serving.launcher import engine_command
from online_agent.weights.experts import ExpertShape, read_expert_shape

SHAPE = ExpertShape(num_layers=2, num_chosen=2, num_experts=8)
MOE = {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}


def encoded(rows: Any) -> dict[str, str]:
    return {"routed_experts": base64.b64encode(np.asarray(rows, "<i4").tobytes()).decode()}


def model(directory: Path, **config: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_rows_are_read_as_layers_of_choices() -> None:
    rows = parse_experts(encoded([0, 7, 1, 2, 3, 4, 5, 6]), ExpertsAsked(SHAPE, first_token=3), num_tokens=6)
    assert rows is not None
    assert rows.dtype == np.uint8
    assert rows.tolist() == [[[0, 7], [1, 2]], [[3, 4], [5, 6]]]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"routed_experts": None},
        {"routed_experts": "not base64!"},
        {"routed_experts": "AAA="},
        encoded([0] * 4),
        encoded([0] * 12),
        encoded([0, 1, 2, 3, 4, 5, 6, 8]),
        encoded([0, 1, 2, 3, 4, 5, 6, -1]),
    ],
    ids=["missing", "null", "no base64", "torn", "too few", "too many", "beyond the last expert", "negative"],
)
def test_rows_that_do_not_line_up_are_no_rows(meta: dict[str, Any]) -> None:
    assert parse_experts(meta, ExpertsAsked(SHAPE, first_token=3), num_tokens=6) is None


def test_a_generation_holds_a_row_for_each_token_but_the_last() -> None:
    rows = np.arange(4 * 4) % 8
    meta = {
        "prompt_tokens": 3,
        "weight_versions": [{"version": "1", "start": 0, "end": 2}],
        "output_token_logprobs": [[-0.5, 11, None], [-0.5, 2, None]],
        **encoded(rows),
    }
    answer = {"output_ids": [11, 2], "meta_info": meta}

    generation = parse_generation(answer, "engine", experts=ExpertsAsked(SHAPE, 0))

    assert generation.misalignment is None
    assert generation.routed_experts is not None
    np.testing.assert_array_equal(generation.routed_experts, rows.reshape(4, 2, 2))
    assert parse_generation(answer, "engine").routed_experts is None
    short = {**answer, "meta_info": {**meta, **encoded(rows[:-4])}}
    misplaced = parse_generation(short, "engine", experts=ExpertsAsked(SHAPE, 0))
    assert (misplaced.routed_experts, misplaced.misalignment) == (None, None)


def test_the_mixture_is_known_from_the_configuration(tmp_path: Path) -> None:
    assert read_expert_shape(model(tmp_path, **MOE)) == SHAPE
    assert read_expert_shape(model(tmp_path, num_hidden_layers=2)) is None
    assert read_expert_shape(model(tmp_path, num_hidden_layers=2, num_experts=0, num_experts_per_tok=0)) is None
    assert read_expert_shape(model(tmp_path, text_config=MOE)) == SHAPE


def test_experts_are_recorded_where_there_are_any_and_fit_in_a_byte(tmp_path: Path) -> None:
    auto, on, off = (EngineSettings(return_routed_experts=value) for value in ("auto", "on", "off"))
    model(tmp_path, **MOE)
    assert recorded_experts(auto, tmp_path) == recorded_experts(on, tmp_path) == SHAPE
    assert recorded_experts(off, tmp_path) is None
    for config in ({"num_hidden_layers": 2}, {**MOE, "num_experts": 257}):
        model(tmp_path, **config)
        assert recorded_experts(auto, tmp_path) is None
        with pytest.raises(ConfigError, match="return_routed_experts is on"):
            recorded_experts(on, tmp_path)


def test_the_server_of_a_mixture_is_started_with_the_switch_and_that_of_another_model_without(tmp_path: Path) -> None:
    switch = "--enable-return-routed-experts"
    assert switch in engine_command(EngineSettings(), model(tmp_path, **MOE), 1, 30000, None).argv
    assert switch not in engine_command(EngineSettings(), model(tmp_path, num_hidden_layers=2), 1, 30000, None).argv
    off = EngineSettings(return_routed_experts="off")
    assert switch not in engine_command(off, model(tmp_path, **MOE), 1, 30000, None).argv
