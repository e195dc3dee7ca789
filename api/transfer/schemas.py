"""Bodies and answers of import. An item is a line of an export in the shape ``native``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from api.bodies import MAX_VERSION, Answer, Body
from online_agent.store.records import MAX_IMPORT_EPISODES, ImportOutcome

MAX_TURNS = 1024
MAX_SPANS = 256
MAX_MESSAGES = 2048
MAX_INT32 = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
VersionRunIn = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_VERSION)]],
    Field(min_length=3, max_length=3, description="`[version, start, end)` within the span"),
]


class ImportSampling(Body):
    """What produced the tokens; log-probs mean nothing without it."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] = 4096


class ImportSpan(Body):
    """A run of tokens of one kind. Actions carry a log-prob per id and the version that sampled each of them.

    An action without either is kept, and bars the episode from training.
    """

    kind: Literal["prompt", "action", "observation", "template"]
    token_ids: list[TokenId]
    logprobs: list[float] | None = None
    version_runs: list[VersionRunIn] = Field(default_factory=list)


class ImportCall(Body):
    name: Annotated[str, Field(max_length=1000)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None


class ImportObservation(Body):
    text: str
    is_error: bool = False
    is_final: bool = False


class ImportTurn(Body):
    text: str = ""
    tool_calls: list[ImportCall] = Field(default_factory=list)
    observations: list[ImportObservation] = Field(default_factory=list)
    finish_reason: Annotated[str, Field(max_length=32)] = ""
    spans: Annotated[list[ImportSpan], Field(min_length=1, max_length=MAX_SPANS)]


class ImportMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ImportItem(Body):
    """A finished episode: ``turns`` token for token, or ``messages`` as text, which is never trained on.

    ``id`` is the owner's; a repeat with the same contents is answered with our first id. Without a ``reward`` the
    episode is kept and never trained on. ``untrainable_reason`` keeps it out of training from the start.
    """

    id: Name
    env: Annotated[str, Field(min_length=1, max_length=100)] = "logs"
    task_id: Name = "log"
    split: Literal["train", "heldout"] = "train"
    sampling: ImportSampling = ImportSampling()
    stop_reason: Literal[
        "submitted", "no_tool_call", "max_turns", "max_tokens", "timeout", "cancelled", "closed", "idle"
    ] = "closed"
    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    is_success: bool | None = None
    untrainable_reason: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    turns: Annotated[list[ImportTurn], Field(max_length=MAX_TURNS)] | None = None
    messages: Annotated[list[ImportMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if (self.turns is None) == (self.messages is None):
            raise ValueError("give either turns or messages")
        return self


_SPANS: list[Any] = [
    {"kind": "prompt", "token_ids": [1, 733, 9210]},
    {"kind": "action", "token_ids": [40, 2], "logprobs": [-0.31, -0.02], "version_runs": [[12, 0, 2]]},
]


class ImportBody(Body):
    """All of the episodes are stored, or none is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"episodes": [{"id": "log-4711", "env": "shop", "reward": 1.0, "turns": [{"spans": _SPANS}]}]},
                {
                    "episodes": [
                        {
                            "id": "chat-9",
                            "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
                        }
                    ]
                },
            ]
        }
    )

    episodes: Annotated[list[ImportItem], Field(min_length=1, max_length=MAX_IMPORT_EPISODES)]


class ImportedOut(Answer):
    """``created``: stored now. ``duplicate``: was here before; of an erased one the id still stands for it.

    ``untrainable_reason`` is that of a created one.
    """

    client_id: str
    id: str
    result: Literal["created", "duplicate"]
    untrainable_reason: str | None

    @classmethod
    def of(cls, outcome: ImportOutcome) -> Self:
        return cls(
            client_id=outcome.client_id,
            id=outcome.episode_id,
            result="created" if outcome.is_new else "duplicate",
            untrainable_reason=outcome.untrainable_reason,
        )


class ImportAnswer(Answer):
    """In the order of the request."""

    data: list[ImportedOut]
    num_created: int
