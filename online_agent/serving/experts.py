"""What the engine says about the experts that it used: whether it is asked, and how its answer reads.

SGLang 0.5.23 answers ``meta_info.routed_experts``: int32 little-endian in base64, one row per token whose state it has
computed (all but the last sampled one), one entry per decoder layer and chosen expert, zeros for layers without a
mixture. Rows of tokens that came from the prefix cache are there too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from online_agent.config.serving import EngineSettings
from online_agent.errors import ConfigError
from online_agent.types import RoutedExperts
from online_agent.weights.experts import ExpertShape, read_expert_shape

MAX_EXPERTS = 256
"""A choice is stored in one byte."""


@dataclass(frozen=True, slots=True)
class ExpertsAsked:
    """What a request asked to have returned: rows of this shape for the tokens from ``first_token`` on."""

    shape: ExpertShape
    first_token: int


def recorded_experts(settings: EngineSettings, serving_dir: Path) -> ExpertShape | None:
    """What the engine is asked to return with every generation; None when nothing is recorded.

    Raises ConfigError when recording is asked for and the model has no experts, or more than fit in a byte.
    """
    if settings.return_routed_experts == "off":
        return None
    shape = read_expert_shape(serving_dir)
    is_recordable = shape is not None and shape.num_experts <= MAX_EXPERTS
    if settings.return_routed_experts == "on" and not is_recordable:
        found = "none" if shape is None else str(shape.num_experts)
        raise ConfigError(
            f"engine.return_routed_experts is on: experts of {serving_dir}: {found}, recordable are up to {MAX_EXPERTS}"
        )
    return shape if is_recordable else None


def parse_experts(meta: Mapping[str, Any], asked: ExpertsAsked, num_tokens: int) -> RoutedExperts | None:
    """(T, L, K) uint8 for the tokens asked for but the last of ``num_tokens``, prompt and answer together.

    None when they are missing, are not as many, or name an expert there is not.
    """
    shape = asked.shape
    num_rows = num_tokens - 1 - asked.first_token
    text = meta.get("routed_experts")
    if not isinstance(text, str) or num_rows < 0:
        return None
    try:
        rows = np.frombuffer(base64.b64decode(text, validate=True), "<i4")
    except ValueError:  # binascii.Error is one
        return None
    if rows.size != num_rows * shape.num_layers * shape.num_chosen:
        return None
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < shape.num_experts:
        return None
    return rows.astype(np.uint8).reshape(num_rows, shape.num_layers, shape.num_chosen)
