"""Which mixture of experts a Hugging Face directory describes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from online_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A token's routing: one entry for each layer and each of the ``num_chosen`` out of ``num_experts``."""

    num_layers: int
    num_chosen: int
    num_experts: int


def read_expert_shape(serving_dir: Path) -> ExpertShape | None:
    """The mixture that the directory's configuration describes; None for a model without experts."""
    config_file = serving_dir / "config.json"
    try:
        config = orjson.loads(config_file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {config_file}: {error}") from error
    config = config.get("text_config") or config
    num_experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    num_chosen = config.get("num_experts_per_tok")
    if not num_experts or not num_chosen:
        return None
    return ExpertShape(int(config["num_hidden_layers"]), int(num_chosen), int(num_experts))
