"""World or model? Two windows of outcomes, before and after a suspected change, are judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from online_agent.drift.outcomes import (
    MIN_SHIFT,
    Outcome,
    has_fallen,
    has_risen,
    mean,
    rewards,
    tool_errors,
)

# Episodes of one version in one window, below which nothing is said about that version.
MIN_PER_VERSION = 8


class Culprit(StrEnum):
    ENVIRONMENT = "environment"
    MODEL = "model"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Judgement:
    culprit: Culprit
    reason: str


def judge(before: Sequence[Outcome], after: Sequence[Outcome]) -> Judgement:
    """Who changed, as far as the two windows tell.

    The world: the same weights do worse than they did, or tool errors rose under every version that has enough
    episodes, and there are at least two. The model: tool errors rose under some versions only, or the reward fell
    while they did not rise.
    """
    versions = _by_version(after)
    for version, earlier in _by_version(before).items():
        later = versions.get(version, [])
        if len(earlier) >= MIN_PER_VERSION and len(later) >= MIN_PER_VERSION and _is_worse(earlier, later):
            return Judgement(Culprit.ENVIRONMENT, f"version {version} does worse than the same weights did before")

    if not has_risen(tool_errors(before), tool_errors(after)):
        if has_fallen(rewards(before), rewards(after)):
            return Judgement(Culprit.MODEL, "the reward fell and tool errors did not rise")
        return Judgement(Culprit.UNDECIDED, "neither signal moved enough")

    usual = mean(tool_errors(before))
    shares = {v: tool_errors(seen) for v, seen in versions.items() if len(tool_errors(seen)) >= MIN_PER_VERSION}
    raised = sorted(v for v, share in shares.items() if mean(share) >= usual + MIN_SHIFT)
    if len(raised) < len(shares):
        return Judgement(Culprit.MODEL, f"tool errors rose under versions {raised} and not under the others")
    if len(raised) >= 2:
        return Judgement(Culprit.ENVIRONMENT, f"tool errors rose under every version: {raised}")
    return Judgement(Culprit.UNDECIDED, "tool errors rose; only one version has been seen since")


def _is_worse(before: Sequence[Outcome], after: Sequence[Outcome]) -> bool:
    return has_fallen(rewards(before), rewards(after)) or has_risen(tool_errors(before), tool_errors(after))


def _by_version(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    versions: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        versions[outcome.version].append(outcome)
    return versions
