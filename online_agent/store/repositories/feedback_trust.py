"""Whether a piece of feedback may count at once, or waits for an operator: caps, bursts and outliers.

What waits uses up no cap. What waits as an outlier is part of the history that the next pieces are measured by: were it
not, a source whose rewards change for good would be held back for ever, and what still counts of it would be its past.
"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import ColumnElement, func, select

from online_agent.store.models import Feedback
from online_agent.store.outliers import OutlierRule
from online_agent.store.records import FeedbackCaps, FeedbackNew, FeedbackTrust
from online_agent.store.repositories.base import Repository
from online_agent.types import FeedbackFate

_MINUTE_S, _DAY_S = 60.0, 86_400.0
_MINUTES_BEFORE = (_DAY_S - _MINUTE_S) / _MINUTE_S
_BURST_DEVIATIONS = 6.0
"""A Poisson count exceeds its mean by so many standard deviations less than once in 10^7 minutes."""
_OUTLIER = "outlier: "
_WAITS = (Feedback.fate == FeedbackFate.QUARANTINED) & Feedback.fate_reason.startswith(_OUTLIER)
_KNOWN = Feedback.fate.not_in((FeedbackFate.QUARANTINED, FeedbackFate.DUPLICATE)) | _WAITS


class FeedbackTrustRows(Repository):
    def _mistrust(self, trust: FeedbackTrust, tenant_id: str, new: FeedbackNew, reward: float | None) -> str | None:
        """Why an operator has to look at it first; None when it counts."""
        of_source = (Feedback.tenant_id == tenant_id, Feedback.source == new.source)
        of_person = (*of_source, Feedback.person.is_not_distinct_from(new.person))
        reason = None
        if trust.caps is not None:
            reason = self._over_cap(trust.caps, of_person)
        if reason is None and trust.burst_floor is not None:
            reason = self._burst(trust.burst_floor, of_source)
        if reason is None and trust.outliers is not None and reward is not None:
            reason = self._outlier(trust.outliers, reward, new, of_source, of_person)
        return reason

    def _over_cap(self, caps: FeedbackCaps, of_person: tuple[ColumnElement[bool], ...]) -> str | None:
        for name, cap, seconds in (("minute", caps.per_minute, _MINUTE_S), ("day", caps.per_day, _DAY_S)):
            if self._num_since(self._now() - seconds, *of_person) >= cap:
                return f"more than {cap} in a {name}"
        return None

    def _burst(self, floor: int, of_source: tuple[ColumnElement[bool], ...]) -> str | None:
        """More from all persons of the source in a minute than its day before lets expect, and than ``floor``."""
        now = self._now()
        lately = self._num_since(now - _MINUTE_S, *of_source)
        if lately < floor:
            return None
        usual = (self._num_since(now - _DAY_S, *of_source) - lately) / _MINUTES_BEFORE
        if lately < usual + _BURST_DEVIATIONS * math.sqrt(usual):
            return None
        return f"burst: {lately} of this source in a minute, {usual:.3g} are usual"

    def _outlier(
        self,
        rule: OutlierRule,
        reward: float,
        new: FeedbackNew,
        of_source: tuple[ColumnElement[bool], ...],
        of_person: tuple[ColumnElement[bool], ...],
    ) -> str | None:
        """A person is measured by themselves and by all others of the source: repeating oneself makes nothing usual."""
        others = of_source if new.person is None else (*of_source, Feedback.person.is_distinct_from(new.person))
        if rule.is_outlier(reward, self._history(rule, others)):
            return f"{_OUTLIER}{reward:g} is far from what {new.source[:100]!r} gave before"
        if new.person is not None and rule.is_outlier(reward, self._history(rule, of_person)):
            return f"{_OUTLIER}{reward:g} is far from what this person gave before"
        return None

    def _history(self, rule: OutlierRule, whose: tuple[ColumnElement[bool], ...]) -> list[float]:
        """The last rewards that counted or wait as outliers, oldest first."""
        query = select(Feedback.reward).where(*whose, _KNOWN, Feedback.reward.is_not(None))
        rows = self._db.execute(query.order_by(Feedback.created_at.desc(), Feedback.id.desc()).limit(rule.window))
        return [reward for reward in rows.scalars() if reward is not None][::-1]

    def _num_since(self, since: float, *whose: Any) -> int:
        counted = Feedback.fate != FeedbackFate.QUARANTINED
        query = select(func.count()).where(*whose, Feedback.created_at > since, counted)
        return int(self._db.execute(query).scalar_one())
