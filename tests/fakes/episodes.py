"""Episodes for tests, written through the real repositories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.types import Artifact, Observation, Split, Verdict
from online_agent.store.records import EpisodeNew, StepNew, TurnNew, VersionNew
from online_agent.store.repositories.steps import step_identity
from online_agent.store.session import Database
from online_agent.types import Sampling, Span, SpanKind, StopReason, ToolCall, VersionOrigin, VersionRun, VersionState

TENANT = "acme"


def make_turn(turn: int = 0, versions: Sequence[int] = (0,), num_tokens: int = 6, logprob: float = -0.5) -> TurnNew:
    """Four prompt ids, ``num_tokens`` action ids split evenly over ``versions``, three observation ids, one error."""
    cuts = np.linspace(0, num_tokens, len(versions) + 1).astype(int)
    runs = tuple(
        VersionRun(version, int(start), int(end))
        for version, start, end in zip(versions, cuts[:-1], cuts[1:], strict=True)
        if end > start
    )
    return TurnNew(
        spans=[
            Span(SpanKind.PROMPT, turn, np.arange(4, dtype=np.int32)),
            Span(
                SpanKind.ACTION,
                turn,
                np.arange(100, 100 + num_tokens, dtype=np.int32),
                np.full(num_tokens, logprob, np.float32),
                runs,
            ),
            Span(SpanKind.OBSERVATION, turn, np.arange(200, 203, dtype=np.int32)),
        ],
        env_revision="r1",
        text="<tool_call>",
        tool_calls=[ToolCall("edit_file", {"path": "a.py"})],
        observations=[Observation("no such file", is_error=True)],
        finish_reason="stop",
        num_prompt_tokens=4,
    )


def open_episode(db: Database, *, split: Split = "train", temperature: float = 1.0, tenant: str = TENANT) -> str:
    new = EpisodeNew(
        tenant_id=tenant,
        env="bug_repair",
        task_id=f"{split}-1",
        split=split,
        sampling=Sampling(temperature=temperature),
    )
    with db.transaction() as tx:
        return tx.episodes.create(new)


def finished_episode(
    db: Database,
    versions: Sequence[int] = (0,),
    *,
    split: Split = "train",
    temperature: float = 1.0,
    num_tokens: int = 6,
    tenant: str = TENANT,
    stop_reason: StopReason = StopReason.SUBMITTED,
) -> str:
    episode_id = open_episode(db, split=split, temperature=temperature, tenant=tenant)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(versions=versions, num_tokens=num_tokens))
        tx.episodes.finish(episode_id, stop_reason, Artifact({"a.py": "x = 1\n"}, is_submitted=True))
    return episode_id


def graded_episode(
    db: Database,
    versions: Sequence[int] = (0,),
    *,
    reward: float = 1.0,
    split: Split = "train",
    temperature: float = 1.0,
    num_tokens: int = 6,
    tenant: str = TENANT,
) -> str:
    episode_id = finished_episode(
        db, versions, split=split, temperature=temperature, num_tokens=num_tokens, tenant=tenant
    )
    with db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(reward, reward > 0))
    return episode_id


def open_group(db: Database, size: int, *, split: Split = "train", tenant: str = TENANT) -> tuple[str, list[str]]:
    """The id of a group and those of its open members."""
    with db.transaction() as tx:
        group = tx.episodes.create_group(EpisodeNew(tenant, "bug_repair", f"{split}-1", split), size)
    return group.id, list(group.episode_ids)


def finish_member(db: Database, episode_id: str, versions: Sequence[int] = (0,), num_tokens: int = 6) -> None:
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(versions=versions, num_tokens=num_tokens))
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, Artifact({"a.py": "x = 1\n"}, is_submitted=True))


def grade_member(db: Database, episode_id: str, versions: Sequence[int] = (0,), reward: float = 1.0) -> None:
    """The open episode has one turn and its verdict."""
    finish_member(db, episode_id, versions)
    with db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(reward, reward > 0))


def graded_group(db: Database, size: int, versions: Sequence[int] = (0,), *, split: Split = "train") -> list[str]:
    _, members = open_group(db, size, split=split)
    for episode_id in members:
        grade_member(db, episode_id, versions)
    return members


def seed_version(db: Database) -> None:
    """Version 0 serves."""
    with db.transaction() as tx:
        tx.weights.insert(VersionNew(tx.weights.next_version(), VersionOrigin.SEED, state=VersionState.SERVING))


def reserve_step(
    db: Database, batch: int, *, current_version: int = 0, lease_s: float = 60.0, group_size: int | None = None
) -> int | None:
    """The number of a reserved step, or None when too few episodes wait."""
    with db.transaction() as tx:
        step = tx.steps.next_step()
        episodes = tx.episodes.reserve(step, batch, current_version, max_staleness=8, group_size=group_size)
        if not episodes:
            return None
        ids = [episode.id for episode in episodes]
        return tx.steps.reserve(
            StepNew(
                step=step,
                episode_ids=ids,
                identity=step_identity(ids, "sao", 0),
                parent_version=current_version,
                fence=tx.control.get().fence,
                owner="learner",
                lease_s=lease_s,
                recipe="sao",
            )
        )


def commit_step(db: Database, step: int, *, parent: int = 0, fence: int = 0) -> int:
    """The version the step made."""
    with db.transaction() as tx:
        version = tx.weights.next_version()
        tx.steps.commit(step, VersionNew(version, VersionOrigin.STEP, parent=parent, step=step), {"loss": 0.5}, fence)
    return version
