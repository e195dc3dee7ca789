"""Bodies and answers of ``/v1/episodes``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from api.bodies import MAX_VERSION, Answer, Body
from api.feedback.schemas import FeedbackOut
from envs.types import Verdict
from online_agent.store.records import EpisodeRecord, TurnRecord
from online_agent.store.records.episodes import MAX_GROUP_SIZE
from online_agent.types import Span, SpanKind

MAX_METADATA_BYTES = 16_384


class SamplingIn(Body):
    """Missing values come from the configuration. Temperature 0 is greedy: for evaluation, never trained on."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=32_768)] | None = None


class LimitsIn(Body):
    """Missing values come from the configuration."""

    max_turns: Annotated[int, Field(ge=1, le=256)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600)] | None = None


class EpisodeCreate(Body):
    """A task for the served agent. Without ``task_id`` or ``task`` the server draws the next one of the split.

    ``task`` is one of your own, in the words of the environment; for ``bug_repair``: ``prompt``, ``files`` (text by
    relative path) and ``tests`` (calls of a function of one file, with what each must return). It names no ``task_id``
    and no ``split``. Secrets are taken out of it first, and the agent works on what is left.

    ``group_size`` above 1 runs the task that many times at once, with the same settings in the same environment
    revision: a group, for learner recipes that compare rollouts of one task. 1 runs it once. Without it the setting
    ``agent.group_size`` decides for tasks of the train split, where it is set.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"env": "bug_repair"},
                {"env": "bug_repair", "task_id": "heldout-3", "sampling": {"temperature": 0.0}},
                {"env": "bug_repair", "group_size": 4},
                {
                    "env": "bug_repair",
                    "task": {
                        "prompt": "fix src/calc.py: add(1, 2) is -1, want 3",
                        "files": {"src/calc.py": "def add(a, b):\n    return a - b\n"},
                        "tests": {"path": "src/calc.py", "cases": [{"call": "add(1, 2)", "want": "3"}]},
                    },
                },
            ]
        }
    )

    env: Annotated[str, Field(min_length=1, max_length=100)]
    task_id: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    task: dict[str, Any] | None = None
    split: Literal["train", "heldout"] = "train"
    sampling: SamplingIn = SamplingIn()
    limits: LimitsIn = LimitsIn()
    weight_version: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    group_size: Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE)] | None = None


class SamplingOut(Answer):
    """What produced the tokens."""

    temperature: float
    top_p: float
    max_new_tokens: int


class LimitsOut(Answer):
    max_turns: int
    max_tokens: int
    timeout_s: float


class VerdictOut(Answer):
    """Reward in [-1, 1] with its evidence."""

    reward: float
    is_success: bool
    evidence: dict[str, Any]

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        return cls(reward=verdict.reward, is_success=verdict.is_success, evidence=dict(verdict.evidence))


class SpanOut(Answer):
    """A run of tokens of one kind. ``is_action`` is the mask: only actions were sampled and are trained on.

    ``version_runs`` are ``[version, start, end)`` within the span; log-probs and runs are there for actions only.
    """

    kind: SpanKind
    is_action: bool
    token_ids: list[int]
    logprobs: list[float] | None
    version_runs: list[tuple[int, int, int]]

    @classmethod
    def of(cls, span: Span) -> Self:
        return cls(
            kind=span.kind,
            is_action=span.kind is SpanKind.ACTION,
            token_ids=span.token_ids.tolist(),
            logprobs=None if span.logprobs is None else span.logprobs.tolist(),
            version_runs=[(run.version, run.start, run.end) for run in span.version_runs],
        )


class TurnOut(Answer):
    """One engine call and the observations it led to; ``spans`` is null unless asked for."""

    number: int
    env_revision: str
    text: str
    tool_calls: list[dict[str, Any]]
    observations: list[dict[str, Any]]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_retractions: int
    latency_s: float
    spans: list[SpanOut] | None

    @classmethod
    def of(cls, turn: TurnRecord, with_spans: bool) -> Self:
        return cls(
            number=turn.number,
            env_revision=turn.env_revision,
            text=turn.text,
            tool_calls=[
                {"name": call.name, "arguments": dict(call.arguments), "error": call.error} for call in turn.tool_calls
            ],
            observations=[asdict(observation) for observation in turn.observations],
            finish_reason=turn.finish_reason,
            num_prompt_tokens=turn.num_prompt_tokens,
            num_cached_tokens=turn.num_cached_tokens,
            num_retractions=turn.num_retractions,
            latency_s=turn.latency_s,
            spans=[SpanOut.of(span) for span in turn.spans] if with_spans else None,
        )


class EpisodeOut(Answer):
    """One episode. ``weight_version`` is the newest version that sampled in it, ``pinned_version`` what was asked for.

    ``step`` is the learner step that holds it or was trained on it. ``group_id`` is null outside a group.
    """

    id: str
    object: Literal["episode"] = "episode"
    status: str
    env: str
    task_id: str
    split: str
    env_revision: str
    sampling: SamplingOut
    limits: LimitsOut
    weight_version: int | None
    oldest_version: int | None
    pinned_version: int | None
    verdict: VerdictOut | None
    stop_reason: str | None
    failure_reason: str | None
    drop_reason: str | None
    untrainable_reason: str | None
    num_turns: int
    num_action_tokens: int
    num_tool_calls: int
    num_tool_errors: int
    step: int | None
    group_id: str | None
    group_size: int | None
    metadata: dict[str, Any]
    created_at: float
    finished_at: float | None
    graded_at: float | None
    trained_at: float | None

    @classmethod
    def of(cls, record: EpisodeRecord, **more: Any) -> Self:
        verdict = record.verdict
        return cls(
            id=record.id,
            status=record.status,
            env=record.env,
            task_id=record.task_id,
            split=record.split,
            env_revision=record.env_revision,
            sampling=SamplingOut(**asdict(record.sampling)),
            limits=LimitsOut(**asdict(record.limits)),
            weight_version=record.newest_version,
            oldest_version=record.oldest_version,
            pinned_version=record.weight_version,
            verdict=None if verdict is None else VerdictOut.of(verdict),
            stop_reason=record.stop_reason,
            failure_reason=record.failure_reason,
            drop_reason=record.drop_reason,
            untrainable_reason=record.untrainable_reason,
            num_turns=record.num_turns,
            num_action_tokens=record.num_action_tokens,
            num_tool_calls=record.num_tool_calls,
            num_tool_errors=record.num_tool_errors,
            step=record.step,
            group_id=record.group_id,
            group_size=record.group_size,
            metadata=dict(record.metadata),
            created_at=record.created_at,
            finished_at=record.finished_at,
            graded_at=record.graded_at,
            trained_at=record.trained_at,
            **more,
        )


class GivenTaskOut(Answer):
    """A task as it is kept: without secrets, ``data`` being what grades it."""

    prompt: str
    files: dict[str, str]
    data: dict[str, Any]

    @classmethod
    def of(cls, record: EpisodeRecord) -> Self | None:
        """None for a task of the environment's own."""
        content = record.task or {}
        return cls.model_validate(content) if "prompt" in content else None


class EpisodeDetail(EpisodeOut):
    """With its turns, feedback, what the agent left behind and the task; each is null unless ``include`` asks for it.

    ``task`` is there for one that came with the request only.
    """

    turns: list[TurnOut] | None
    feedback: list[FeedbackOut] | None
    files: dict[str, str] | None
    task: GivenTaskOut | None


class EpisodeList(Answer):
    """Newest first."""

    data: list[EpisodeOut]
    next_cursor: str | None


class EpisodeCreated(Answer):
    """The episode exists and runs. This answer is what an Idempotency-Key remembers: ids only.

    Of a group it is the first episode; ``episode_ids`` are all of them. Outside one, ``group_id`` is null and
    ``episode_ids`` holds the one id.
    """

    id: str
    object: Literal["episode"] = "episode"
    status: str
    env: str
    task_id: str
    group_id: str | None
    episode_ids: list[str]


class GroupOut(EpisodeOut):
    """The first episode of a group that was waited for; ``members`` are all of its episodes, this one first."""

    episode_ids: list[str]
    members: list[EpisodeOut]
