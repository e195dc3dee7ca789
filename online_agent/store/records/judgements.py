"""An answer that waits for a judge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DueJudgement:
    """``next_turn`` is the first that went on from ``turn``: its prompt begins with what followed the answer."""

    tenant_id: str
    episode_id: str
    turn: int
    next_turn: int
