"""An answer given before, told again from what is stored of it: for a client that repeats its call under one key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from online_agent.errors import NotFound
from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.calls import CallAnswer, ChatCall, ChoiceAnswer, Delta, Finish, Receipt, TokenLogprob, Usage
from online_agent.gateway.markup import Called, Fragment, Said, Thought
from online_agent.store.records import CompletionRecord, TurnRecord
from online_agent.store.session import Transaction
from online_agent.types import Sampling, Span, SpanKind

_FINISHES: tuple[Finish, ...] = ("stop", "stop_string", "length", "tool_calls", "cancelled")


class RecalledExchange:
    """Reads like the exchange that gave the answer; nothing is sampled. Alternatives to tokens are not stored."""

    def __init__(self, call: ChatCall, sampling: Sampling, answer: CallAnswer) -> None:
        self.call, self.sampling = call, sampling
        self._answer = answer
        self.completion_id, self.created_at = answer.receipt.completion_id, answer.created_at
        self.episode_name = answer.receipt.episode_id
        self.num_prompt_tokens = answer.usage.prompt_tokens

    async def deltas(self) -> AsyncIterator[Delta]:
        for choice in self._answer.choices:
            yield Delta(choice.index, _fragments(choice.answer), choice.logprobs)

    async def answer(self) -> CallAnswer:
        return self._answer

    async def leave(self) -> None:
        """There is nothing to stop."""


def recall(
    tx: Transaction, tenant_id: str, call: ChatCall, completion_id: str, stop_token_ids: Collection[int]
) -> RecalledExchange:
    """Raises NotFound when the answer was erased, or an exact retry has taken its place."""
    records = tx.clients.completion(tenant_id, completion_id)
    if not records:
        raise NotFound(f"the answer {completion_id!r} is no longer stored")
    episode_id = records[0].episode_id
    episode = tx.episodes.get(tenant_id, episode_id)
    turns = {turn.number: turn for turn in tx.episodes.turns(episode_id)}
    choices = [_choice(call, record, turns[record.turn], stop_token_ids) for record in records]
    first = turns[records[0].turn]
    answer = CallAnswer(
        receipt=Receipt(completion_id, episode_id, records[0].turn, records[0].weight_version),
        choices=choices,
        usage=Usage(
            prompt_tokens=first.num_prompt_tokens,
            completion_tokens=sum(len(_action(turns[record.turn]).token_ids) for record in records),
            cached_tokens=min(turns[record.turn].num_cached_tokens for record in records),
        ),
        created_at=records[0].created_at,
    )
    return RecalledExchange(call, episode.sampling, answer)


def _choice(
    call: ChatCall, record: CompletionRecord, turn: TurnRecord, stop_token_ids: Collection[int]
) -> ChoiceAnswer:
    said = record.message
    calls = [Called(index, *parts) for index, parts in enumerate(said["calls"])]
    answer = AnswerText(said["text"], said["reasoning"], calls, said["stop_string"])
    finish: Finish = next(finish for finish in _FINISHES if finish == turn.finish_reason)
    wants_logprobs = call.num_top_logprobs is not None
    logprobs = _logprobs(_action(turn), stop_token_ids) if wants_logprobs else []
    return ChoiceAnswer(record.choice, answer, finish, logprobs, record.weight_version, record.turn)


def _action(turn: TurnRecord) -> Span:
    return next(span for span in turn.spans if span.kind is SpanKind.ACTION)


def _logprobs(action: Span, stop_token_ids: Collection[int]) -> list[TokenLogprob]:
    values = [] if action.logprobs is None else action.logprobs.tolist()
    pairs = zip(action.token_ids.tolist(), values, strict=False)
    return [TokenLogprob(token, value) for token, value in pairs if token not in stop_token_ids]


def _fragments(answer: AnswerText) -> list[Fragment]:
    fragments: list[Fragment] = [Thought(answer.reasoning)] if answer.reasoning else []
    fragments += [Said(answer.text)] if answer.text else []
    return [*fragments, *answer.calls]
