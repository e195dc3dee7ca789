"""What clients may call an episode or a turn by: our id, a name of their own, or the id of a completion."""

from __future__ import annotations

from collections.abc import Sequence

from online_agent.errors import BadInput
from online_agent.store.session import Transaction


def named_episode(tx: Transaction, tenant_id: str, name: str) -> tuple[str, tuple[int, ...]]:
    """The episode's id, and the turns of the completion if it was named by one. An unknown name stays as it is."""
    episode = tx.clients.find(tenant_id, name)
    if episode is not None:
        return episode.id, ()
    of_completion = tx.clients.find_turns(tenant_id, name)
    return (name, ()) if of_completion is None else (of_completion[0], tuple(of_completion[1]))


def turn_numbers(tx: Transaction, tenant_id: str, episode_id: str, turns: Sequence[int | str]) -> tuple[int, ...]:
    """Numbers as they are, ids of completions as the turns they are. Raises BadInput for one of another episode."""
    numbers: list[int] = []
    for turn in turns:
        if isinstance(turn, int):
            numbers.append(turn)
            continue
        found = tx.clients.find_turns(tenant_id, turn)
        if found is None or found[0] != episode_id:
            raise BadInput(f"turns: {turn!r} is no completion of this episode", param="turns")
        numbers += found[1]
    return tuple(numbers)
