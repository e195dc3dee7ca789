"""An exponentially weighted reference that a run of bad values cannot pull down to itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class GuardedReference:
    """reference' = reference + alpha (value - reference), but only for values that do not alarm.

    A value alarms when it lies more than ``max_drop`` below the reference. Alarming values never enter the average, so
    the alarm lasts as long as the drop does. The first ``num_warmup`` values after a start only build the average
    (their mean) and cannot alarm. Immutable: ``observe`` returns the next state.
    """

    alpha: float
    max_drop: float
    num_warmup: int = 1
    value: float | None = None
    warmup: tuple[float, ...] = field(default=())

    def observe(self, value: float) -> tuple[GuardedReference, bool]:
        """The state after ``value``, and whether it alarms."""
        if self.value is None:
            seen = (*self.warmup, value)
            if len(seen) < self.num_warmup:
                return replace(self, warmup=seen), False
            return replace(self, value=sum(seen) / len(seen), warmup=()), False
        if self.value - value > self.max_drop:
            return self, True
        return replace(self, value=self.value + self.alpha * (value - self.value)), False

    def restart(self, value: float | None = None) -> GuardedReference:
        """From ``value`` at once (a rollback: the reference its version had), or through a new warm-up."""
        return replace(self, value=value, warmup=())

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "warmup": list(self.warmup)}

    def with_json(self, state: dict[str, Any]) -> GuardedReference:
        """These parameters with a saved state."""
        return replace(self, value=state["value"], warmup=tuple(state["warmup"]))
