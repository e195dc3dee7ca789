"""Bodies and answers of ``/v1/changes``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from api.bodies import Answer, Body
from online_agent.store.records import ChangeRecord

MAX_EPISODES = 10_000_000


class AfterEpisodes(Body):
    """Counted from the request: episodes of the environment that finished since."""

    after_episodes: Annotated[int, Field(ge=1, le=MAX_EPISODES)]


class ChangeCreate(Body):
    """Alter the tools or the API under the agent. Silent: prompt and schemas keep the old state."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "env": "bug_repair",
                    "kind": "rename_tool",
                    "params": {"tool": "edit_file", "to": "replace_text"},
                    "visibility": "silent",
                    "starts": "now",
                }
            ]
        }
    )

    env: Annotated[str, Field(min_length=1, max_length=100)]
    kind: Annotated[str, Field(min_length=1, max_length=100)]
    params: dict[str, Any] = Field(default_factory=dict)
    visibility: Literal["documented", "silent"] = "documented"
    starts: Literal["now"] | AfterEpisodes = "now"
    ends: AfterEpisodes | None = None
    mid_episode: bool = False


class ChangeOut(Answer):
    """``starts_at_episode`` and ``ends_at_episode`` are totals of episodes finished in the environment."""

    id: str
    env: str
    kind: str
    params: dict[str, Any]
    visibility: str
    mid_episode: bool
    state: str
    starts_at_episode: int
    ends_at_episode: int | None
    created_at: float
    activated_at: float | None
    ended_at: float | None

    @classmethod
    def of(cls, record: ChangeRecord) -> Self:
        return cls(
            id=record.id,
            env=record.env,
            kind=record.kind,
            params=dict(record.params),
            visibility=record.visibility,
            mid_episode=record.is_mid_episode,
            state=record.state,
            starts_at_episode=record.starts_at_count,
            ends_at_episode=record.ends_at_count,
            created_at=record.created_at,
            activated_at=record.activated_at,
            ended_at=record.ended_at,
        )


class ChangeList(Answer):
    data: list[ChangeOut]
