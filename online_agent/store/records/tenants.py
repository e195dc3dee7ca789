"""What a tenant has agreed to, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """``changed_at`` None: the tenant never said anything, so its text trains nothing.

    ``versions`` are those whose step was given episodes of the tenant; versions made from them learned from it too.
    ``num_held`` of its episodes are in a step that runs, whose version will be one of them.
    """

    id: str
    trains_shared_weights: bool
    changed_at: float | None
    num_held: int
    versions: tuple[int, ...]
