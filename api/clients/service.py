"""Episodes that clients run themselves: closed, looked at, and answered for by the receipt of each answer."""

from __future__ import annotations

from api.auth import Caller
from api.clients.names import named_episode
from api.clients.schemas import (
    CLOSING_SOURCE,
    ClientEpisodeOut,
    CompletionList,
    CompletionOut,
    DiscardedOut,
    EpisodeClose,
    ReceiptOut,
)
from api.feedback.schemas import FeedbackOut
from api.feedback.trust import trust_of
from api.idempotency import Claim, Outcome, once
from api.runtime import Runtime
from online_agent.errors import Conflict, NotFound
from online_agent.store.records import ClientEpisodeRecord, FeedbackNew
from online_agent.store.session import Transaction
from online_agent.types import StopReason


async def close(runtime: Runtime, caller: Caller, name: str, body: EpisodeClose, claim: Claim | None) -> Outcome:
    """The episode takes no more turns; with a reward it can be trained on.

    Raises NotFound, or Conflict for an episode that is no client's or that a step holds already.
    """

    def work(tx: Transaction) -> ClientEpisodeOut:
        episode = _client_episode(tx, caller, name)
        if not episode.is_active:
            raise Conflict(f"episode {name!r} is {episode.status}: it is over already")
        if body.reward is not None or body.outcome is not None:
            outcome = None if body.outcome is None else runtime.redactor.text(body.outcome)
            weight = runtime.settings.feedback.weight_of(CLOSING_SOURCE)
            new = FeedbackNew(CLOSING_SOURCE, body.reward, outcome, weight=weight)
            tx.feedback.add(caller.tenant_id, episode.id, new, trust_of(runtime.settings.feedback))
        tx.clients.close(episode.id, StopReason.CLOSED)
        return _shown(tx, caller, tx.clients.get(episode.id))

    async def effect() -> Outcome:
        return Outcome(200, (await runtime.write(work)).model_dump(mode="json"))

    return await once(runtime, claim, effect)


async def completions(runtime: Runtime, caller: Caller, name: str) -> CompletionList:
    """Raises NotFound, also for an episode that is no client's."""

    def collect(tx: Transaction) -> CompletionList:
        episode = _client_episode(tx, caller, name)
        return CompletionList(
            data=[CompletionOut.of(record) for record in tx.clients.completions(episode.id)],
            discarded=[DiscardedOut.of(record) for record in tx.clients.discarded(episode.id)],
        )

    return await runtime.read(collect)


async def receipt(runtime: Runtime, caller: Caller, completion_id: str) -> ReceiptOut:
    """Raises NotFound for an answer that is unknown, not stored, or another tenant's."""

    def collect(tx: Transaction) -> ReceiptOut:
        found = tx.clients.find_turns(caller.tenant_id, completion_id)
        if found is None:
            raise NotFound(f"no receipt {completion_id!r}")
        episode_id, turns = found
        given = tx.feedback.of_episode(caller.tenant_id, episode_id)
        return ReceiptOut(
            completion_id=completion_id,
            episode=_shown(tx, caller, tx.clients.get(episode_id)),
            turns=turns,
            is_replaced=not tx.clients.completion(caller.tenant_id, completion_id),
            feedback=[FeedbackOut.of(f) for f in given if not f.turns or set(f.turns) & set(turns)],
        )

    return await runtime.read(collect)


def _client_episode(tx: Transaction, caller: Caller, name: str) -> ClientEpisodeRecord:
    episode_id, _ = named_episode(tx, caller.tenant_id, name)
    episode = tx.clients.find(caller.tenant_id, episode_id)
    if episode is None:
        tx.episodes.get(caller.tenant_id, episode_id)
        raise Conflict(f"episode {name!r} is run by this service: it ends by itself")
    return episode


def _shown(tx: Transaction, caller: Caller, episode: ClientEpisodeRecord) -> ClientEpisodeOut:
    return ClientEpisodeOut.of(episode, tx.episodes.get(caller.tenant_id, episode.id))
