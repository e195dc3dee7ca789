"""The models that runs start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.live.pipeline import Policy
from benchmarks.live.records import PolicyName
from online_agent.seed_policy.upcycle import upcycle
from online_agent.supervisor.bootstrap import SHIPPED_SEED


def seed_policies(names: Iterable[PolicyName], directory: Path) -> Mapping[PolicyName, Policy]:
    """``dense`` is the shipped seed policy; ``moe`` is grown from it into ``directory``, the same bytes each time."""
    wanted = set(names)
    policies: dict[PolicyName, Policy] = {}
    if "dense" in wanted:
        policies["dense"] = Policy(SHIPPED_SEED)
    if "moe" in wanted:
        model_dir = directory / "seed-moe"
        upcycle(SHIPPED_SEED, model_dir)
        policies["moe"] = Policy(model_dir)
    return policies
