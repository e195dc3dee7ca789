"""What the configuration asks of feedback before it counts."""

from __future__ import annotations

from online_agent.config.signal import FeedbackSettings
from online_agent.store.outliers import OutlierRule
from online_agent.store.records import FeedbackCaps, FeedbackTrust


def trust_of(settings: FeedbackSettings) -> FeedbackTrust:
    outliers = None
    if settings.outlier_threshold is not None:
        outliers = OutlierRule(
            threshold=settings.outlier_threshold,
            min_history=settings.outlier_min_history,
            window=settings.outlier_window,
        )
    return FeedbackTrust(
        caps=FeedbackCaps(settings.max_per_minute, settings.max_per_day),
        burst_floor=settings.burst_floor,
        outliers=outliers,
    )
