"""``/v1/people``: what is known of one person is erased."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from api.auth import Caller, OperatorCaller
from api.bodies import Answer
from api.limits import StrictRoute
from api.runtime import Runtime, RuntimeDep
from online_agent.store.repositories.people import ErasedPerson
from online_agent.store.session import Transaction

router = APIRouter(prefix="/v1/people", tags=["people"], route_class=StrictRoute)

PersonName = Annotated[
    str, Path(min_length=1, max_length=200, description="As `metadata.person` of episodes and calls, and in feedback")
]


class ErasedOut(Answer):
    """``versions`` were trained on what is erased, and so was every version made from them.

    ``num_held`` episodes are in a step that runs: ask again when it has ended.
    """

    num_episodes: int
    num_feedback: int
    num_held: int
    versions: list[int]


@router.delete("/{person}")
async def erase_person(runtime: RuntimeDep, caller: OperatorCaller, person: PersonName) -> ErasedOut:
    """Erase the tenant's episodes of a person and their feedback; tells which versions were trained on them."""
    erased = await _erase(runtime, caller, person)
    return ErasedOut(
        num_episodes=erased.num_episodes,
        num_feedback=erased.num_feedback,
        num_held=erased.num_held,
        versions=list(erased.versions),
    )


async def _erase(runtime: Runtime, caller: Caller, person: str) -> ErasedPerson:
    """The event that is kept of it does not name the person."""

    def work(tx: Transaction) -> ErasedPerson:
        erased = tx.people.erase(caller.tenant_id, person)
        facts = {
            "tenant_id": caller.tenant_id,
            "num_episodes": erased.num_episodes,
            "num_feedback": erased.num_feedback,
            "num_held": erased.num_held,
            "versions": list(erased.versions),
        }
        tx.events.add("person_erased", facts)
        return erased

    return await runtime.write(work)
