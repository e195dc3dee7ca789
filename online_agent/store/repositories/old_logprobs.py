"""Old log-probs that were scored while the version that sampled the tokens was still the current one.

A score belongs to a token with everything before it: each stored run carries a hash of the ids up to its end, and one
that no longer fits the episode (a generation that was lost and sampled again) is not read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import delete, insert, select, text

from online_agent.errors import MisalignedEpisode
from online_agent.store.encoding import unpack_spans
from online_agent.store.models import Episode, OldLogprobs, PartialGeneration, Turn
from online_agent.store.models.episodes import QUEUED
from online_agent.store.records import CLIENT_ENV
from online_agent.store.repositories.base import Repository
from online_agent.store.repositories.client_rows import ClientRows
from online_agent.store.repositories.consent import HAS_CONSENT
from online_agent.types import EpisodeStatus, Float32Array, Int32Array, Span, TrainingEpisode, training_episode

_WAITING = (EpisodeStatus.OPEN, EpisodeStatus.FINISHED, EpisodeStatus.GRADED, EpisodeStatus.RESERVED)
_LEARNABLE = (
    Episode.status.in_(_WAITING),
    Episode.split == "train",
    Episode.untrainable_reason.is_(None),
    Episode.temperature > 0,
    HAS_CONSENT,
)
_OF_ROW = (Episode.id, Episode.env, Episode.temperature)
_FLOAT32 = np.dtype("<f4")


class _Partial(NamedTuple):
    spans: list[Span]
    temperature: float | None


class OldLogprobRepository(Repository):
    def held_by(self, version: int) -> list[TrainingEpisode]:
        """Every row that may still be trained and has tokens of ``version``, with what is scored so far.

        Tokens of turns, and of generations under way when the engine was last paused. The reward is not filled in.
        """
        is_under_way = Episode.id.in_(select(PartialGeneration.episode_id))
        rows = self._db.execute(
            select(*_OF_ROW).where(*_LEARNABLE, (Episode.newest_version >= version) | is_under_way).order_by(Episode.id)
        ).all()
        episodes = self._rows(rows, self._partials([row.id for row in rows]))
        return self.fill([e for e in episodes if (e.versions == version).any()])

    def upcoming(self, num: int) -> list[TrainingEpisode]:
        """The rows of the ``num`` oldest of the training queue: most of the next batch. The reward is not filled in."""
        query = select(*_OF_ROW).where(text(QUEUED), HAS_CONSENT)
        return self._rows(self._db.execute(query.order_by(Episode.finished_at, Episode.id).limit(num)).all(), {})

    def fill(self, episodes: Sequence[TrainingEpisode]) -> list[TrainingEpisode]:
        """The episodes with ``old_logprobs`` where they are stored, NaN elsewhere."""
        query = select(OldLogprobs).where(OldLogprobs.episode_id.in_({e.episode_id for e in episodes}))
        runs: dict[str, list[Any]] = defaultdict(list)
        for row in self._db.execute(query.order_by(OldLogprobs.episode_id, OldLogprobs.first_token)):
            runs[row.episode_id].append(row)
        return [replace(episode, old_logprobs=_filled(episode, runs[episode.episode_id])) for episode in episodes]

    def put(self, episodes: Sequence[TrainingEpisode], version: int, scored: Sequence[Float32Array]) -> int:
        """Store the scores of ``scored`` (T,) that are not NaN; returns their bytes. Each was sampled by ``version``.

        Scores that are stored already are replaced. Episodes erased meanwhile are left out.
        """
        tenants = select(Episode.id, Episode.tenant_id).where(Episode.id.in_({e.episode_id for e in episodes}))
        tenant_of = {row.id: row.tenant_id for row in self._db.execute(tenants)}
        rows = {
            (episode.episode_id, run["first_token"], run["prefix_hash"]): run
            | {"episode_id": episode.episode_id, "version": version, "tenant_id": tenant_of[episode.episode_id]}
            for episode, logp in zip(episodes, scored, strict=True)
            if episode.episode_id in tenant_of
            for run in _runs(episode.token_ids, logp)
        }
        for episode_id, first_token, of_prefix in rows:
            keys = (OldLogprobs.episode_id == episode_id, OldLogprobs.first_token == first_token)
            same = (*keys, OldLogprobs.version == version, OldLogprobs.prefix_hash == of_prefix)
            self._db.execute(delete(OldLogprobs).where(*same))
        if rows:
            self._db.execute(insert(OldLogprobs), list(rows.values()))
        return sum(len(row["logprobs"]) for row in rows.values())

    def prune(self) -> None:
        """Gone is what no later step can use: scores of episodes that were trained, dropped or failed, and generations
        that an interruption stored and that were scored since."""
        over = select(Episode.id).where(Episode.status.not_in(_WAITING))
        self._db.execute(delete(OldLogprobs).where(OldLogprobs.episode_id.in_(over)))
        self._db.execute(delete(PartialGeneration))

    def _rows(self, rows: Sequence[Any], partials: Mapping[str, Sequence[_Partial]]) -> list[TrainingEpisode]:
        """The episodes as they are trained, those of clients segment by segment, and what was under way in them."""
        turns = self._turn_spans([row.id for row in rows if row.env != CLIENT_ENV])
        laid: list[TrainingEpisode | None] = []
        for row in rows:
            under_way = partials.get(row.id, ())
            if row.env == CLIENT_ENV:
                laid += self._client_rows(row.id)
                laid += [_whole(row.id, temperature or row.temperature, spans) for spans, temperature in under_way]
            else:
                last = under_way[-1].spans if under_way else ()
                laid.append(_laid_out(row.id, row.temperature, turns[row.id], last))
        return [episode for episode in laid if episode is not None]

    def _client_rows(self, episode_id: str) -> list[TrainingEpisode]:
        try:
            return ClientRows(self._db, self._now).training_rows(episode_id, 0.0)
        except MisalignedEpisode:
            return []

    def _turn_spans(self, episode_ids: Sequence[str]) -> Mapping[str, list[Span]]:
        query = (
            select(Turn.episode_id, Turn.span_index, Turn.token_ids, Turn.logprobs)
            .where(Turn.episode_id.in_(episode_ids))
            .order_by(Turn.episode_id, Turn.number)
        )
        spans: dict[str, list[Span]] = defaultdict(list)
        for row in self._db.execute(query):
            spans[row.episode_id].extend(unpack_spans(row.span_index, row.token_ids, row.logprobs))
        return spans

    def _partials(self, episode_ids: Sequence[str]) -> Mapping[str, list[_Partial]]:
        query = select(*PartialGeneration.__table__.columns).where(PartialGeneration.episode_id.in_(episode_ids))
        partials: dict[str, list[_Partial]] = defaultdict(list)
        for row in self._db.execute(query.order_by(PartialGeneration.number)):
            spans = unpack_spans(row.span_index, row.token_ids, row.logprobs)
            partials[row.episode_id].append(_Partial(spans, row.temperature))
        return partials


def prefix_hash(token_ids: Int32Array) -> str:
    """128 bits of the ids' sha256, in hex."""
    return hashlib.sha256(np.asarray(token_ids, "<i4").tobytes()).hexdigest()[:32]


def _laid_out(
    episode_id: str, temperature: float, turns: Sequence[Span], partial: Sequence[Span]
) -> TrainingEpisode | None:
    """The stored turns, and behind them what was under way. None where neither lines up and holds an action."""
    recorded = _whole(episode_id, temperature, turns)
    under_way = _whole(episode_id, temperature, partial)
    if under_way is None or recorded is None:
        return recorded or under_way
    num = len(recorded.token_ids)
    if num >= len(under_way.token_ids) or not np.array_equal(recorded.token_ids, under_way.token_ids[:num]):
        return recorded
    joined = replace(under_way, action_mask=under_way.action_mask.copy(), versions=under_way.versions.copy())
    joined.action_mask[:num] = recorded.action_mask
    joined.versions[:num] = recorded.versions
    return joined


def _whole(episode_id: str, temperature: float, spans: Sequence[Span]) -> TrainingEpisode | None:
    try:
        return training_episode(episode_id, spans, 0.0, temperature)
    except MisalignedEpisode:
        return None


def _runs(token_ids: Int32Array, logp: Float32Array) -> list[dict[str, Any]]:
    """The stretches of (T,) ``logp`` without NaN."""
    edges = np.flatnonzero(np.diff(np.r_[False, ~np.isnan(logp), False].astype(np.int8))).reshape(-1, 2)
    return [
        {
            "first_token": int(start),
            "prefix_hash": prefix_hash(token_ids[:end]),
            "logprobs": np.asarray(logp[start:end], _FLOAT32).tobytes(),
        }
        for start, end in edges
    ]


def _filled(episode: TrainingEpisode, runs: Sequence[Any]) -> Float32Array:
    old = np.full(len(episode.token_ids), np.nan, np.float32)
    for row in runs:
        logp = np.frombuffer(row.logprobs, _FLOAT32)
        end = row.first_token + len(logp)
        is_same = end <= len(old) and bool((episode.versions[row.first_token : end] == row.version).all())
        if is_same and prefix_hash(episode.token_ids[:end]) == row.prefix_hash:
            old[row.first_token : end] = logp
    return old
