"""What the store takes and returns: frozen dataclasses, never ORM objects.

``...New`` is what a caller hands in, ``...Record`` is a row as it was read. Times are unix seconds (float, UTC).
Checks that need no database are made by the repository that takes the value and raise BadInput naming it.
"""

from online_agent.store.records.access import Done, Fresh, Idempotency, KeyRecord, Mismatch, ProcessRecord, Running
from online_agent.store.records.answers import AnswerCounts, AnswerShare
from online_agent.store.records.changes import ChangeNew, ChangeRecord, EventRecord
from online_agent.store.records.clients import (
    CLIENT_ENV,
    ClientEpisodeRecord,
    ClientTokens,
    CompletionLink,
    CompletionNew,
    CompletionRecord,
    DiscardedRecord,
    SeenEpisode,
)
from online_agent.store.records.episodes import (
    EpisodeGroup,
    EpisodeNew,
    EpisodeRecord,
    GradingClaim,
    Page,
    QueueCounts,
    SeriesBucket,
    SeriesPoint,
    TurnNew,
    TurnRecord,
)
from online_agent.store.records.feedback import (
    FeedbackCaps,
    FeedbackNew,
    FeedbackRecord,
    FeedbackRule,
    FeedbackTrust,
)
from online_agent.store.records.imports import MAX_IMPORT_EPISODES, ImportNew, ImportOutcome
from online_agent.store.records.interruptions import InterruptionRecord, InterruptionState, PartialGenerationNew
from online_agent.store.records.json import Json
from online_agent.store.records.judgements import DueJudgement
from online_agent.store.records.tenants import TenantRecord
from online_agent.store.records.training import (
    Control,
    ResetRequest,
    StepNew,
    StepRecord,
    VersionEpisode,
    VersionNew,
    VersionRecord,
)

__all__ = [
    "CLIENT_ENV",
    "MAX_IMPORT_EPISODES",
    "AnswerCounts",
    "AnswerShare",
    "ChangeNew",
    "ChangeRecord",
    "ClientEpisodeRecord",
    "ClientTokens",
    "CompletionLink",
    "CompletionNew",
    "CompletionRecord",
    "Control",
    "DiscardedRecord",
    "Done",
    "DueJudgement",
    "EpisodeGroup",
    "EpisodeNew",
    "EpisodeRecord",
    "EventRecord",
    "FeedbackCaps",
    "FeedbackNew",
    "FeedbackRecord",
    "FeedbackRule",
    "FeedbackTrust",
    "Fresh",
    "GradingClaim",
    "Idempotency",
    "ImportNew",
    "ImportOutcome",
    "InterruptionRecord",
    "InterruptionState",
    "Json",
    "KeyRecord",
    "Mismatch",
    "Page",
    "PartialGenerationNew",
    "ProcessRecord",
    "QueueCounts",
    "ResetRequest",
    "Running",
    "SeenEpisode",
    "SeriesBucket",
    "SeriesPoint",
    "StepNew",
    "StepRecord",
    "TenantRecord",
    "TurnNew",
    "TurnRecord",
    "VersionEpisode",
    "VersionNew",
    "VersionRecord",
]
