"""Episodes of clients for tests, written through the real repositories."""

from __future__ import annotations

from typing import Any

import numpy as np

from online_agent.store.records import CLIENT_ENV, CompletionNew, EpisodeNew, SeenEpisode, TurnNew
from online_agent.store.session import Database
from online_agent.types import Span, SpanKind, ToolCall, VersionRun
from tests.fakes.episodes import TENANT

PROMPT = Span(SpanKind.PROMPT, 0, np.arange(4, dtype=np.int32))


def open_client(db: Database, name: str | None = None, parent_id: str | None = None) -> str:
    new = EpisodeNew(tenant_id=TENANT, env=CLIENT_ENV, task_id="prompt-1", split="train")
    with db.transaction() as tx:
        return tx.clients.open(new, name, parent_id)


def answer(
    db: Database,
    episode_id: str,
    prompt: str = "p",
    *,
    num_tokens: int = 3,
    logprob: float = -0.5,
    seen: SeenEpisode | None = None,
    **fields: Any,
) -> int:
    """One answer of ``num_tokens`` ids to the conversation called ``prompt``."""
    ids, logprobs = np.arange(100, 100 + num_tokens, dtype=np.int32), np.full(num_tokens, logprob, np.float32)
    action = Span(SpanKind.ACTION, 0, ids, logprobs, (VersionRun(0, 0, num_tokens),))
    values: dict[str, Any] = {
        "completion_id": f"c-{prompt}",
        "choice": 0,
        "protocol": "chat",
        "turn": TurnNew([PROMPT, action], tool_calls=[ToolCall("f")], text=prompt),
        "context": [],
        "parent": None,
        "parent_completion": None,
        "call_hash": prompt,
        "history_hash": f"{prompt}+",
        "message_hash": "m",
        "temperature": 1.0,
        "asked_at": db.clock(),
        "weight_version": 0,
        **fields,
    }
    with db.transaction() as tx:
        return tx.clients.add(episode_id, CompletionNew(**values), seen)
