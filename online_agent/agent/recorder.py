"""What the agent writes to the store: one short transaction a turn, on threads, never open across an engine call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from envs.types import Artifact
from online_agent.agent.group_writer import GroupWriter
from online_agent.agent.requests import EpisodeEvent, events_of
from online_agent.errors import Conflict
from online_agent.store.records import ChangeRecord, EpisodeGroup, EpisodeNew, EpisodeRecord, TurnNew
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase
from online_agent.types import ChangeState, EpisodeStatus, StopReason


class Recorder:
    """The runner's view of the store."""

    def __init__(self, db: Database, threads: Executor) -> None:
        self._store = ThreadedDatabase(db, threads)
        self._writer = GroupWriter(db, threads)

    async def active_changes(self, env: str) -> Sequence[ChangeRecord]:
        return await self._store.read(lambda tx: tx.changes.active(env))

    async def open(self, new: EpisodeNew) -> str:
        """The episode's row exists. Raises Conflict when it is pinned to a version that does not serve."""

        def work(tx: Transaction) -> str:
            _check_pin(tx, new)
            return tx.episodes.create(new)

        return await self._writer.run(work)

    async def open_group(self, new: EpisodeNew, group_size: int) -> EpisodeGroup:
        """The rows of all members exist. Raises Conflict as ``open`` does."""

        def work(tx: Transaction) -> EpisodeGroup:
            _check_pin(tx, new)
            return tx.episodes.create_group(new, group_size)

        return await self._writer.run(work)

    async def turn(self, episode_id: str, env: str, new: TurnNew, misalignment: str | None) -> Sequence[ChangeRecord]:
        """The turn is stored; returns the changes active now."""

        def work(tx: Transaction) -> Sequence[ChangeRecord]:
            if misalignment is not None:
                tx.episodes.mark_untrainable(episode_id, misalignment)
            tx.episodes.add_turn(episode_id, new)
            return tx.changes.active(env)

        return await self._writer.run(work)

    async def finish(self, episode_id: str, env: str, reason: StopReason, artifact: Artifact | None) -> None:
        """The episode has its result, and the changes that waited for this many episodes have moved."""

        def work(tx: Transaction) -> None:
            tx.episodes.finish(episode_id, reason, artifact)
            for change in tx.changes.activate_due(env):
                kind = "change_ended" if change.state is ChangeState.ENDED else "change_started"
                tx.events.add(kind, {"tenant_id": change.tenant_id, "change_id": change.id, "env": env})

        await self._writer.run(work)

    async def fail(self, episode_id: str, reason: str) -> None:
        await self._writer.run(lambda tx: tx.episodes.fail(episode_id, reason))

    async def get(self, tenant_id: str, episode_id: str) -> EpisodeRecord:
        return await self._store.read(lambda tx: tx.episodes.get(tenant_id, episode_id))

    async def past_events(self, episode_id: str) -> list[EpisodeEvent]:
        """The events of the turns that are stored, as they were told when they happened."""
        turns = await self._store.read(lambda tx: tx.episodes.turns(episode_id))
        return [event for turn in turns for event in events_of(turn)]

    async def progress(self, episode_ids: Sequence[str]) -> Mapping[str, tuple[str, EpisodeStatus]]:
        return await self._store.read(lambda tx: tx.episodes.progress(episode_ids))


def _check_pin(tx: Transaction, new: EpisodeNew) -> None:
    if new.weight_version is None:
        return
    serving = tx.weights.serving()
    if serving is None or serving.version != new.weight_version:
        held = "none" if serving is None else str(serving.version)
        raise Conflict(
            f"the episode is pinned to version {new.weight_version}, but version {held} serves",
            param="weight_version",
        )
