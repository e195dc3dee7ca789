"""A client's episode is exported as the learner reads it: a row for each segment, each action in one of them."""

from __future__ import annotations

import numpy as np

from online_agent.store.records import CLIENT_ENV, CompletionNew, EpisodeNew, TurnNew
from online_agent.store.session import Database
from online_agent.transfer.native import SEVERAL_TEMPERATURES, StoredEpisode, native_rows
from online_agent.types import Span, SpanKind, StopReason, VersionRun


def _answer(number: int, parent: int | None, *, temperature: float = 1.0, barred: str | None = None) -> CompletionNew:
    """Prompt [100 + number], sampled [number]."""
    prompt = Span(SpanKind.PROMPT, 0, np.array([100 + number], np.int32))
    runs = (VersionRun(0, 0, 1),)
    action = Span(SpanKind.ACTION, 0, np.array([number], np.int32), np.array([-0.5], np.float32), runs)
    return CompletionNew(
        completion_id=f"c{number}",
        choice=0,
        protocol="chat",
        turn=TurnNew([prompt, action]),
        context=(),
        parent=parent,
        parent_completion=None if parent is None else f"c{parent}",
        call_hash=f"call{number}",
        history_hash=f"history{number}",
        message_hash=f"message{number}",
        temperature=temperature,
        asked_at=0.0,
        untrainable_reason=barred,
    )


def _rows(url: str, *answers: CompletionNew) -> list[dict[str, object]]:
    db = Database(url)
    with db.transaction() as tx:
        episode_id = tx.clients.open(EpisodeNew("acme", CLIENT_ENV, "client", "train"))
        for answer in answers:
            tx.clients.add(episode_id, answer)
        tx.clients.close(episode_id, StopReason.CLOSED)
    with db.reading() as tx:
        stored = StoredEpisode(
            tx.episodes.get("acme", episode_id),
            tx.episodes.turns(episode_id),
            tx.clients.links(episode_id),
            tx.clients.completions(episode_id),
        )
    db.close()
    rows = list(native_rows(stored))
    assert [row["id"] for row in rows] == [episode_id, *(f"{episode_id}#{n}" for n in range(1, len(rows)))]
    return rows


def _tokens(row: dict[str, object]) -> list[tuple[str, int]]:
    return [
        (span["kind"], token)
        for turn in row["turns"]  # type: ignore[attr-defined]
        for span in turn["spans"]
        for token in span["token_ids"]
    ]


def test_a_branch_shows_what_it_left_as_context(sqlite_url: str) -> None:
    first, second = _rows(sqlite_url, _answer(0, None), _answer(1, 0), _answer(2, 0))
    assert _tokens(first) == [("prompt", 100), ("action", 0), ("prompt", 101), ("action", 1)]
    assert _tokens(second) == [("prompt", 100), ("prompt", 0), ("prompt", 102), ("action", 2)]


def test_an_answer_that_is_not_trained_on_is_context(sqlite_url: str) -> None:
    [row] = _rows(sqlite_url, _answer(0, None), _answer(1, 0, temperature=0.0, barred="sampled greedily"))
    assert _tokens(row) == [("prompt", 100), ("action", 0), ("prompt", 101), ("prompt", 1)]
    assert row["untrainable_reason"] is None


def test_one_row_cannot_name_two_temperatures(sqlite_url: str) -> None:
    [row] = _rows(sqlite_url, _answer(0, None), _answer(1, 0, temperature=0.5))
    assert row["untrainable_reason"] == SEVERAL_TEMPERATURES
