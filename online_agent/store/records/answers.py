"""What the answers of a weight version amount to, and the shares that alarms watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from online_agent.types import AnswerKind


@dataclass(frozen=True, slots=True)
class AnswerShare:
    """``num`` of ``num_answers``."""

    num: int
    num_answers: int

    @property
    def share(self) -> float | None:
        return self.num / self.num_answers if self.num_answers else None


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """``counts``: (whether tools were offered, kind) → number of answers."""

    version: int
    counts: Mapping[tuple[bool, AnswerKind], int]

    def shares(self) -> dict[str, AnswerShare]:
        """By name of the alarm: no_op and broken_call among answers with tools, refusal among all."""
        with_tools = {kind: num for (has_tools, kind), num in self.counts.items() if has_tools}
        num_with_tools, num_all = sum(with_tools.values()), sum(self.counts.values())
        refusals = sum(num for (_, kind), num in self.counts.items() if kind is AnswerKind.REFUSAL)
        no_op = with_tools.get(AnswerKind.EMPTY, 0) + with_tools.get(AnswerKind.TEXT, 0)
        return {
            "no_op": AnswerShare(no_op, num_with_tools),
            "broken_call": AnswerShare(with_tools.get(AnswerKind.BROKEN_CALL, 0), num_with_tools),
            "refusal": AnswerShare(refusals, num_all),
        }
