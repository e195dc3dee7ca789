"""Episodes brought from elsewhere, many in one transaction: three statements, whatever their number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select

from online_agent.errors import BadInput, Conflict
from online_agent.store.bulk import insert_rows
from online_agent.store.models import Episode, ImportedEpisode, Turn, WeightVersion, table_of
from online_agent.store.records import MAX_IMPORT_EPISODES, ImportNew, ImportOutcome
from online_agent.store.repositories.base import Repository, check_name, new_id
from online_agent.store.repositories.consent import bar_without_consent
from online_agent.store.repositories.episodes import NO_ACTION_TOKENS, episode_values
from online_agent.store.repositories.turns import turn_counts, turn_values
from online_agent.store.rewards import check_reward
from online_agent.store.segments import SEGMENT_MARK
from online_agent.types import EpisodeStatus

NO_REWARD = "no reward"
_EPISODES, _TURNS, _IMPORTED = table_of(Episode), table_of(Turn), table_of(ImportedEpisode)


class ImportRepository(Repository):
    def add(self, tenant_id: str, items: Sequence[ImportNew]) -> list[ImportOutcome]:
        """Every item is stored, in the order given, or was there before with the same contents.

        Those with a verdict wait in the training queue; those without are dropped, ``no reward``. Raises BadInput or
        Conflict naming the item (``episodes.3.id``): then the caller's transaction must not commit.
        """
        if not 1 <= len(items) <= MAX_IMPORT_EPISODES:
            raise BadInput(f"episodes must be 1 to {MAX_IMPORT_EPISODES}, got {len(items)}", param="episodes")
        hashes = [client_hash(item.client_id) for item in items]
        self._refuse_repeats(items)
        self._take_turns(tenant_id)
        known = self._known(tenant_id, hashes)
        own = self._own(tenant_id, items)
        versions = self._versions()
        outcomes: list[ImportOutcome] = []
        rows = _Rows(bar_without_consent(self._db, tenant_id))
        for index, (item, hashed) in enumerate(zip(items, hashes, strict=True)):
            if item.client_id in own:
                outcomes.append(ImportOutcome(item.client_id, own[item.client_id], is_new=False))
            elif hashed in known:
                outcomes.append(_repeat(item, index, *known[hashed]))
            else:
                outcomes.append(rows.add(tenant_id, item, hashed, versions, self._now()))
        insert_rows(self._db, _EPISODES, rows.episodes)
        insert_rows(self._db, _IMPORTED, rows.imported)
        insert_rows(self._db, _TURNS, rows.turns)
        return outcomes

    def _refuse_repeats(self, items: Sequence[ImportNew]) -> None:
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            at = first.setdefault(item.client_id, index)
            if at != index:
                param = f"episodes.{index}.id"
                raise BadInput(f"{param}: {item.client_id!r} is also the id of episodes.{at}", param=param)

    def _take_turns(self, tenant_id: str) -> None:
        """Of two imports of a tenant at once, one waits here for the other. SQLite has one writer anyway."""
        if self._db.dialect.name == "postgresql":
            key = func.hashtextextended(f"import/{tenant_id}", 0)
            self._db.execute(select(func.pg_advisory_xact_lock(key)))

    def _known(self, tenant_id: str, hashes: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Hash of the owner's id → (our id, hash of the contents)."""
        columns = (ImportedEpisode.client_hash, ImportedEpisode.episode_id, ImportedEpisode.content_hash)
        mine = (ImportedEpisode.tenant_id == tenant_id, ImportedEpisode.client_hash.in_(hashes))
        return {row[0]: (row[1], row[2]) for row in self._db.execute(select(*columns).where(*mine))}

    def _own(self, tenant_id: str, items: Sequence[ImportNew]) -> dict[str, str]:
        """Owner's id → our id, of what was exported here: each is trained once, the episode itself."""
        ours = {item.client_id: item.client_id.partition(SEGMENT_MARK)[0] for item in items}
        stored = select(Episode.id).where(Episode.tenant_id == tenant_id, Episode.id.in_(set(ours.values())))
        there = set(self._db.execute(stored).scalars())
        return {client_id: episode_id for client_id, episode_id in ours.items() if episode_id in there}

    def _versions(self) -> frozenset[int]:
        return frozenset(self._db.execute(select(WeightVersion.version)).scalars())


class _Rows:
    """What is to be inserted, table by table. ``bar``: why none of it may be trained on."""

    def __init__(self, bar: str | None) -> None:
        self._bar = bar
        self.episodes: list[dict[str, Any]] = []
        self.turns: list[dict[str, Any]] = []
        self.imported: list[dict[str, Any]] = []

    def add(self, tenant_id: str, item: ImportNew, hashed: str, versions: frozenset[int], now: float) -> ImportOutcome:
        check_name(item.client_id, "id")
        episode_id = new_id("ep", now)
        counts = [turn_counts(episode_id, turn) for turn in item.turns]
        reason = self._bar or _why_untrainable(item, counts, versions)
        self.episodes.append(
            {
                **episode_values(item.episode, now),
                **_totals(counts),
                **_end(item, now),
                "id": episode_id,
                "tenant_id": tenant_id,
                "untrainable_reason": reason,
            }
        )
        self.turns += [turn_values(episode_id, number, tenant_id, turn, now) for number, turn in enumerate(item.turns)]
        self.imported.append(
            {
                "tenant_id": tenant_id,
                "client_hash": hashed,
                "episode_id": episode_id,
                "content_hash": item.content_hash,
                "created_at": now,
            }
        )
        return ImportOutcome(item.client_id, episode_id, is_new=True, untrainable_reason=reason)


def client_hash(client_id: str) -> str:
    return hashlib.sha256(client_id.encode()).hexdigest()


def _repeat(item: ImportNew, index: int, episode_id: str, content_hash: str) -> ImportOutcome:
    if content_hash != item.content_hash:
        param = f"episodes.{index}.id"
        raise Conflict(f"{param}: {item.client_id!r} was imported with other contents", param=param)
    return ImportOutcome(item.client_id, episode_id, is_new=False)


def _why_untrainable(item: ImportNew, counts: Sequence[dict[str, Any]], versions: frozenset[int]) -> str | None:
    """The first reason against training on it; None when there is none."""
    if item.episode.untrainable_reason is not None:
        return item.episode.untrainable_reason
    misaligned = next((count["reason"] for count in counts if count["reason"] is not None), None)
    if misaligned is not None:
        return str(misaligned)
    if not any(count["action_tokens"] for count in counts):
        return NO_ACTION_TOKENS
    sampled = {run.version for turn in item.turns for span in turn.spans for run in span.version_runs}
    unknown = sorted(sampled - versions)
    return f"unknown weight version {unknown[0]}" if unknown else None


def _totals(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sampled = [count for count in counts if count["oldest"] is not None]
    return {
        "num_turns": len(counts),
        "num_action_tokens": sum(count["action_tokens"] for count in counts),
        "num_tool_calls": sum(count["tool_calls"] for count in counts),
        "num_tool_errors": sum(count["tool_errors"] for count in counts),
        "oldest_version": min((count["oldest"] for count in sampled), default=None),
        "newest_version": max((count["newest"] for count in sampled), default=None),
    }


def _end(item: ImportNew, now: float) -> dict[str, Any]:
    verdict = item.verdict
    end = {"stop_reason": item.stop_reason, "finished_at": now}
    if verdict is None:
        unrated = {"reward": None, "is_success": None, "evidence": None, "graded_at": None}
        return {**end, **unrated, "status": EpisodeStatus.DROPPED, "drop_reason": NO_REWARD}
    return {
        **end,
        "status": EpisodeStatus.GRADED,
        "drop_reason": None,
        "reward": check_reward(verdict.reward),
        "is_success": verdict.is_success,
        "evidence": dict(verdict.evidence),
        "graded_at": now,
    }
