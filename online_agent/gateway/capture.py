"""What an answer leaves in the store: one short transaction, committed before the client has the end of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from online_agent.agent.group_writer import GroupWriter
from online_agent.errors import OnlineAgentError
from online_agent.gateway.answer_kinds import answer_kind, offers_tools
from online_agent.gateway.calls import ChatCall
from online_agent.gateway.fingerprints import call_fingerprint, extended, message_fingerprint
from online_agent.gateway.prompts import Prompt
from online_agent.gateway.sampler import SampledChoice
from online_agent.gateway.secrets import Secrets
from online_agent.store.expert_rows import pack_experts
from online_agent.store.records import CompletionNew, EpisodeNew, SeenEpisode, TurnNew
from online_agent.store.session import Database, Transaction
from online_agent.types import Sampling, Span, SpanKind, StopReason, ToolCall

CLIENT_LEFT = "the client left before the answer was whole"
UNDER_GRAMMAR = "sampled under a grammar: the log-probs are not those of the model that is trained"
RESHAPING = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "top_k", "min_p")
"""Sampling parameters after which the engine's log-probs are not those of the distribution that was sampled."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The episode an answer belongs to. ``new`` is its row, should it not be there yet.

    ``is_unnamed``: the client does not know of it before its first answer, so an answer cut short ends it.
    """

    new: EpisodeNew
    name: str | None
    parent_id: str | None
    is_known: bool
    is_unnamed: bool
    seen: SeenEpisode | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """Everything about one answer but its choices."""

    completion_id: str
    call: ChatCall
    prompt: Prompt
    sampling: Sampling
    asked_at: float
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the choices are, in their order."""

    episode_id: str
    turns: list[int]


class Capture:
    def __init__(self, db: Database, threads: Executor, secrets: Secrets) -> None:
        self._writer, self._secrets = GroupWriter(db, threads), secrets

    async def open(self, opening: Opening) -> Opening:
        """The episode is there before its first answer."""
        if opening.is_known:
            return opening
        episode_id = await self._writer.run(lambda tx: _opened(tx, opening))
        return replace(opening, is_known=True, new=replace(opening.new, id=episode_id))

    async def answer(self, opening: Opening, captured: Captured, choices: Sequence[SampledChoice]) -> Stored:
        """The choices are turns of the episode, durable when this returns.

        Raises NotFound or Conflict when the episode was erased or closed meanwhile.
        """
        kept = [self._secrets.kept(choice) for choice in choices]
        news = [_completion(captured, index, choice, reason) for index, (choice, reason) in enumerate(kept)]

        def work(tx: Transaction) -> Stored:
            episode_id = _opened(tx, opening)
            for choice in choices:
                if choice.generation.misalignment is not None:
                    tx.episodes.mark_untrainable(episode_id, choice.generation.misalignment)
            turns = [tx.clients.add(episode_id, new, opening.seen) for new in news]
            if opening.is_unnamed and all(new.is_cut_short for new in news):
                tx.clients.close(episode_id, StopReason.CANCELLED)
            return Stored(episode_id, turns)

        return await self._writer.run(work)

    async def failure(
        self, opening: Opening, captured: Captured, error: OnlineAgentError, partial: Sequence[tuple[str, Span]]
    ) -> str:
        """The generations that did not come to their end are kept beside the episode; returns its id."""

        kept = [
            (self._secrets.text(text), replace(sampled, token_ids=self._secrets.ids(sampled.token_ids)[0]))
            for text, sampled in partial
        ]

        def work(tx: Transaction) -> str:
            episode_id = _opened(tx, opening)
            for text, sampled in kept:
                spans = [*captured.prompt.spans, sampled]
                tx.clients.discard(episode_id, captured.completion_id, f"failed: {error.message}", text, spans)
            return episode_id

        return await self._writer.run(work)


def untrainable_reason(sampling: Sampling, call: ChatCall, choice: SampledChoice) -> str | None:
    """Why the sampled ids of this turn may not be trained on, or None when they may."""
    if choice.generation.misalignment is not None:
        return choice.generation.misalignment
    if choice.finish == "cancelled":
        return CLIENT_LEFT
    if sampling.temperature == 0:
        return "sampled greedily (temperature 0)"
    if sampling.top_p < 1:
        return f"top_p {sampling.top_p:g}: the engine's log-probs are those before top-p"
    if call.has_grammar:
        return UNDER_GRAMMAR
    reshaped = next((name for name in RESHAPING if name in call.sampling.more), None)
    return reshaped and f"{reshaped}: the engine's log-probs are not those of what was sampled"


def _opened(tx: Transaction, opening: Opening) -> str:
    return opening.new.id if opening.is_known else tx.clients.open(opening.new, opening.name, opening.parent_id)


def _completion(captured: Captured, index: int, choice: SampledChoice, secret: str | None) -> CompletionNew:
    prompt, generation, message = captured.prompt, choice.generation, choice.answer.message
    return CompletionNew(
        completion_id=captured.completion_id,
        choice=index,
        protocol=captured.call.protocol,
        turn=_turn(captured, choice),
        context=prompt.context,
        parent=prompt.parent,
        parent_completion=prompt.parent_completion,
        call_hash=call_fingerprint(prompt.prompt_hash, captured.call, captured.sampling),
        history_hash=extended(prompt.prompt_hash, message),
        message_hash=message_fingerprint(message),
        temperature=captured.sampling.temperature,
        asked_at=captured.asked_at,
        num_forced=prompt.num_forced,
        untrainable_reason=secret or untrainable_reason(captured.sampling, captured.call, choice),
        is_cut_short=choice.finish == "cancelled",
        message=_message(choice),
        tags=captured.call.tags,
        weight_version=max((run.version for run in generation.version_runs), default=None),
        answer_kind=answer_kind(captured.call, choice),
        has_tools=offers_tools(captured.call),
        traceparent=captured.traceparent,
    )


def _turn(captured: Captured, choice: SampledChoice) -> TurnNew:
    generation = choice.generation
    experts = generation.routed_experts
    action = Span(SpanKind.ACTION, 0, generation.token_ids, generation.logprobs, generation.version_runs)
    return TurnNew(
        spans=[*captured.prompt.spans, action],
        text=choice.answer.text,
        tool_calls=[
            *(ToolCall(call.name, call.read_arguments()) for call in choice.answer.calls),
            *choice.answer.unread,
        ],
        finish_reason=choice.finish,
        num_prompt_tokens=captured.prompt.num_input_ids,
        num_cached_tokens=generation.num_cached_tokens,
        num_retractions=generation.num_retractions,
        latency_s=choice.seconds,
        routed_experts=None if experts is None else pack_experts(experts, captured.prompt.num_routed),
    )


def _message(choice: SampledChoice) -> dict[str, object]:
    """The answer as the client got it, so that it can be given again."""
    answer = choice.answer
    return {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "calls": [[call.id, call.name, call.arguments] for call in answer.calls],
        "stop_string": answer.stop_string,
    }
