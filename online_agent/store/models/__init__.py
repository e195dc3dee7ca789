"""All tables; importing this package fills ``Base.metadata``."""

from online_agent.store.models.access import ApiKey, IdempotencyKey
from online_agent.store.models.base import Base, table_of
from online_agent.store.models.changes import EnvChange
from online_agent.store.models.clients import ClientEpisode, Completion, DiscardedGeneration
from online_agent.store.models.episodes import Episode, Turn
from online_agent.store.models.events import DetectorState, Event
from online_agent.store.models.feedback import Feedback
from online_agent.store.models.imports import ImportedEpisode
from online_agent.store.models.judgements import Judgement
from online_agent.store.models.old_logprobs import Interruption, OldLogprobs, PartialGeneration
from online_agent.store.models.processes import Lease, Process
from online_agent.store.models.steps import Step, StepEpisode
from online_agent.store.models.tenants import Tenant
from online_agent.store.models.weights import LearnerControl, WeightVersion

__all__ = [
    "ApiKey",
    "Base",
    "ClientEpisode",
    "Completion",
    "DetectorState",
    "DiscardedGeneration",
    "EnvChange",
    "Episode",
    "Event",
    "Feedback",
    "IdempotencyKey",
    "ImportedEpisode",
    "Interruption",
    "Judgement",
    "LearnerControl",
    "Lease",
    "OldLogprobs",
    "PartialGeneration",
    "Process",
    "Step",
    "StepEpisode",
    "Tenant",
    "Turn",
    "WeightVersion",
    "table_of",
]
