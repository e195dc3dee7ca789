"""The phases an environment goes through, as plain data that a database row can hold.

    watching → suspected ─┬→ confirmed: one reset is asked for, then cooling down → watching
                          ├→ cleared → watching
                          └→ the model is blamed; the alarm stays until cleared, rolled back or reset

Invariants: an alarm is raised once and lasts; while it lasts, the window before it is frozen, so a drop never becomes
its own baseline; each confirmed change asks for exactly one reset; nothing alarms during warm-up and cool-down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from online_agent.drift.detectors import adwin_fires, change_point, page_hinkley_fires
from online_agent.drift.outcomes import MIN_SHIFT, Outcome, has_fallen, has_risen, mean, rewards, tool_errors
from online_agent.drift.reference import GuardedReference
from online_agent.drift.verdict import Culprit, Judgement, judge

# Episodes the detectors look back on; a replay of that many takes milliseconds.
MAX_WINDOW = 512
# Episodes after a suspected change before anybody is judged.
MIN_JUDGED = 20
# One value of the EWMA reference is the mean reward of so many episodes: at a rate of 0.7 its standard error is 0.08.
BLOCK_EPISODES = 32
_MAX_DROP = 0.25
_ALPHA = 0.3
_MAX_CHUNK = 64
_MAX_REFERENCES = 64

DETECTED = "drift_detected"
CLEARED = "drift_cleared"
CONFIRMED = "environment_change_confirmed"
BLAMED = "model_degraded"
REBASELINED = "drift_baseline_reset"


class Phase(StrEnum):
    WATCHING = "watching"
    SUSPECTED = "suspected"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be recorded as an event. ``reset_cause`` is set when the EWMA reference must be reset."""

    kind: str
    data: dict[str, Any]
    reset_cause: str | None = None


@dataclass(slots=True)
class Monitor:
    """``window``: outcomes since the last reset, oldest first; ``split``: where the suspected change lies in it.

    ``quiet``: episodes left of the cool-down. ``block``: rewards of the block being filled. ``references``: the
    reference each version had while it was the newest.
    """

    min_episodes: int
    cooldown_episodes: int
    adwin_delta: float
    phase: Phase = Phase.WATCHING
    window: list[Outcome] = field(default_factory=list)
    split: int = 0
    quiet: int = 0
    is_model_blamed: bool = False
    reference: GuardedReference = field(default_factory=lambda: GuardedReference(_ALPHA, _MAX_DROP, num_warmup=2))
    block: list[float] = field(default_factory=list)
    references: dict[int, float] = field(default_factory=dict)

    def observe(self, outcomes: Sequence[Outcome]) -> list[Finding]:
        """What these outcomes, in order, make of the state."""
        findings: list[Finding] = []
        for start in range(0, len(outcomes), _MAX_CHUNK):
            findings += self._observe_chunk(outcomes[start : start + _MAX_CHUNK])
        return findings

    def announce(self, changes: Sequence[str]) -> list[Finding]:
        """An operator told the agent of a change: confirmed without evidence, and never compared across."""
        cause = f"announced change: {', '.join(changes)}"
        self._restart(None)
        return [Finding(CONFIRMED, {"by": "announcement", "changes": list(changes)}, reset_cause=cause)]

    def rolled_back(self, target: int) -> list[Finding]:
        """Earlier weights serve again: the reference is the one they had, everything else starts anew."""
        self._restart(self.references.get(target))
        return [Finding(REBASELINED, {"cause": f"rollback to version {target}", "reference": self.reference.value})]

    def summary(self) -> dict[str, Any]:
        """The state in a few numbers, for people."""
        phase = "cooling_down" if self.quiet else self.phase.value
        if not self.quiet and self.phase is Phase.WATCHING and len(self.window) < self.min_episodes:
            phase = "warming_up"
        return {
            "phase": phase,
            "reference": self.reference.value,
            "num_episodes": len(self.window),
            "cooldown_left": self.quiet,
            "is_model_blamed": self.is_model_blamed,
        }

    def _observe_chunk(self, chunk: Sequence[Outcome]) -> list[Finding]:
        self.window.extend(chunk)
        has_low_block = self._fill_blocks(chunk)
        if self.phase is Phase.SUSPECTED:
            return self._reconsider()
        del self.window[:-MAX_WINDOW]
        self.quiet = max(0, self.quiet - len(chunk))
        if self.quiet or len(self.window) < self.min_episodes:
            return []
        return self._look(has_low_block)

    def _fill_blocks(self, chunk: Sequence[Outcome]) -> bool:
        """Feed the reference one value per whole block; says whether one of them alarmed."""
        has_low_block = False
        for outcome in chunk:
            self.block.append(outcome.reward)
            if len(self.block) < BLOCK_EPISODES:
                continue
            self.reference, is_low = self.reference.observe(mean(self.block))
            self.block = []
            has_low_block |= is_low
            if self.reference.value is not None and not is_low:
                self.references[outcome.version] = self.reference.value
        for version in sorted(self.references)[:-_MAX_REFERENCES]:
            del self.references[version]
        return has_low_block

    def _look(self, has_low_block: bool) -> list[Finding]:
        alarm = self._reward_alarm(has_low_block) or self._tool_error_alarm()
        if alarm is None:
            return []
        detectors, signal, self.split = alarm
        self.phase = Phase.SUSPECTED
        return [Finding(DETECTED, {"detectors": detectors, "signal": signal, **self._means()}), *self._reconsider()]

    def _reward_alarm(self, has_low_block: bool) -> tuple[list[str], str, int] | None:
        positions = list(range(len(self.window)))
        return self._alarm("reward", rewards(self.window), positions, ["ewma"] if has_low_block else [])

    def _tool_error_alarm(self) -> tuple[list[str], str, int] | None:
        positions = [i for i, outcome in enumerate(self.window) if outcome.tool_errors is not None]
        return self._alarm("tool_errors", [-share for share in tool_errors(self.window)], positions, [])

    def _alarm(
        self, signal: str, values: list[float], positions: list[int], fired: list[str]
    ) -> tuple[list[str], str, int] | None:
        """Detectors that fired on ``values`` (lower is worse) and the place in the window, if they did get worse."""
        if adwin_fires(values, delta=self.adwin_delta, min_values=self.min_episodes):
            fired = [*fired, "adwin"]
        if page_hinkley_fires(values, min_values=self.min_episodes):
            fired = [*fired, "page_hinkley"]
        if not fired:
            return None
        at = change_point(values)
        if has_fallen(values[:at], values[at:]):
            return fired, signal, positions[at]
        if "adwin" in fired and has_risen(values[:at], values[at:]):
            del self.window[: positions[at]]
        return None

    def _reconsider(self) -> list[Finding]:
        """The suspicion is cleared, confirmed or blamed on the model once there is enough to go by."""
        num_after = len(self.window) - self.split
        if num_after < MIN_JUDGED:
            return []
        if self._is_over():
            means = self._means()
            self._restart(self.reference.value)
            return [Finding(CLEARED, means)]
        judgement = judge(self.window[: self.split], self.window[self.split :])
        if judgement.culprit is Culprit.ENVIRONMENT:
            return [self._confirm(judgement)]
        del self.window[self.split : -MAX_WINDOW]
        if judgement.culprit is Culprit.MODEL and num_after >= self.min_episodes and not self.is_model_blamed:
            self.is_model_blamed = True
            return [Finding(BLAMED, {"reason": judgement.reason, **self._means()})]
        return []

    def _confirm(self, judgement: Judgement) -> Finding:
        data = {"by": "detectors", "reason": judgement.reason, **self._means()}
        self._restart(None)
        return Finding(CONFIRMED, data, reset_cause=f"environment change: {judgement.reason}")

    def _is_over(self) -> bool:
        """Hysteresis: raised at a shift of MIN_SHIFT, over when the last episodes are back within half of it."""
        before, last = self.window[: self.split], self.window[self.split :][-self.min_episodes :]
        if len(last) < self.min_episodes:
            return False
        has_reward = mean(rewards(last)) >= mean(rewards(before)) - MIN_SHIFT / 2
        return has_reward and mean(tool_errors(last)) <= mean(tool_errors(before)) + MIN_SHIFT / 2

    def _means(self) -> dict[str, Any]:
        before, after = self.window[: self.split], self.window[self.split :]
        return {
            name: {
                "num_episodes": len(part),
                "reward": round(mean(rewards(part)), 4),
                "tool_errors": round(mean(tool_errors(part)), 4),
            }
            for name, part in (("before", before), ("after", after))
        }

    def _restart(self, reference: float | None) -> None:
        self.phase, self.split, self.is_model_blamed = Phase.WATCHING, 0, False
        self.window, self.block = [], []
        self.quiet = self.cooldown_episodes
        self.reference = self.reference.restart(reference)

    def to_json(self) -> dict[str, Any]:
        """Everything ``load`` needs, as JSON values."""
        return {
            "phase": self.phase.value,
            "window": [list(outcome) for outcome in self.window],
            "split": self.split,
            "quiet": self.quiet,
            "is_model_blamed": self.is_model_blamed,
            "reference": self.reference.to_json(),
            "block": list(self.block),
            "references": {str(version): value for version, value in self.references.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.phase = Phase(state["phase"])
        self.window = [Outcome(*values) for values in state["window"]]
        self.split, self.quiet, self.is_model_blamed = state["split"], state["quiet"], state["is_model_blamed"]
        self.reference = self.reference.with_json(state["reference"])
        self.block = list(state["block"])
        self.references = {int(version): value for version, value in state["references"].items()}
