"""Erasing what is known of one person: the episodes marked with them, and what they said about others."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, or_, select

from online_agent.store.models import Completion, Episode, Feedback, Step, StepEpisode
from online_agent.store.repositories.base import Repository, check_name
from online_agent.types import EpisodeStatus, StepStatus

PERSON_FIELD = "person"


@dataclass(frozen=True, slots=True)
class ErasedPerson:
    """``versions``: those whose step was given an episode of the person, also one that is held and stays for now.

    ``num_held``: episodes that a step holds; ask again when it has ended.
    """

    num_episodes: int
    num_feedback: int
    num_held: int
    versions: tuple[int, ...]


class PeopleRepository(Repository):
    def erase(self, tenant_id: str, person: str) -> ErasedPerson:
        """The tenant's episodes with ``metadata.person`` equal to ``person`` are gone, and all feedback of that person.

        An episode is theirs when it was opened so, or any call of it was.
        """
        check_name(person, PERSON_FIELD)
        theirs = self._theirs(tenant_id, person)
        versions = (
            select(Step.version)
            .join(StepEpisode, StepEpisode.step == Step.step)
            .where(
                StepEpisode.episode_id.in_(select(Episode.id).where(theirs)),
                Step.status == StepStatus.COMMITTED,
            )
            .distinct()
            .order_by(Step.version)
        )
        made = tuple(version for version in self._db.execute(versions).scalars() if version is not None)
        said = delete(Feedback).where(Feedback.tenant_id == tenant_id, Feedback.person == person)
        num_feedback = self._db.execute(said).rowcount
        gone = self._db.execute(delete(Episode).where(theirs, Episode.status != EpisodeStatus.RESERVED)).rowcount
        held = self._db.execute(select(func.count()).select_from(Episode).where(theirs)).scalar_one()
        return ErasedPerson(gone, num_feedback, held, made)

    def _theirs(self, tenant_id: str, person: str) -> ColumnElement[bool]:
        by_call = select(Completion.episode_id).where(
            Completion.tenant_id == tenant_id, Completion.tags[PERSON_FIELD].as_string() == person
        )
        opened = Episode.tags[PERSON_FIELD].as_string() == person
        return (Episode.tenant_id == tenant_id) & or_(opened, Episode.id.in_(by_call))
