"""One call under way: its choices are sampled side by side, stored together, and only then is the answer whole.

Invariants
- The work goes on without its client: one that leaves stops the engine, and what was sampled is stored.
- No database connection is held while anything is sampled or streamed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from online_agent.errors import BadInput, EngineError, EngineRejected, EngineUnavailable, OnlineAgentError
from online_agent.gateway.calls import CallAnswer, ChatCall, ChoiceAnswer, Delta, Receipt, TokenLogprob, Usage
from online_agent.gateway.capture import Capture, Captured, Opening, Stored
from online_agent.gateway.markup import Fragment
from online_agent.gateway.sampler import CUT_TIMEOUT_S, ChoiceSampler, SampledChoice
from online_agent.telemetry import tracing
from online_agent.telemetry.conventions import EPISODE
from online_agent.telemetry.logging import get_logger
from online_agent.telemetry.model_calls import answered, chat_span
from online_agent.types import Sampling

log = get_logger(__name__)


class Exchange:
    """``start`` it, read ``deltas`` (if the client streams), then ``answer``; ``leave`` when the client has gone.

    ``opening`` is None for an answer that is not stored. ``episode_name`` is what the client calls the episode.
    """

    def __init__(self, captured: Captured, opening: Opening | None, capture: Capture) -> None:
        self.captured, self.opening = captured, opening
        self.outlives_client = False
        self._capture = capture
        self._samplers: list[ChoiceSampler] = []
        self._at_end: list[Callable[[], None]] = []
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[SampledChoice]] = []
        self._work: asyncio.Task[CallAnswer] | None = None
        self.created_at = time.time()

    @property
    def call(self) -> ChatCall:
        return self.captured.call

    @property
    def sampling(self) -> Sampling:
        return self.captured.sampling

    @property
    def completion_id(self) -> str:
        return self.captured.completion_id

    @property
    def episode_name(self) -> str | None:
        return None if self.opening is None else self.opening.name or self.opening.new.id

    @property
    def num_prompt_tokens(self) -> int:
        return self.captured.prompt.num_input_ids

    def add(self, sampler: ChoiceSampler) -> None:
        """One more choice; ``emit`` takes what it says."""
        self._samplers.append(sampler)

    def at_end(self, call: Callable[[], None]) -> None:
        """It is called once the answer is stored, or has failed."""
        self._at_end.append(call)

    def emit(self, choice: int, fragments: list[Fragment], logprobs: list[TokenLogprob]) -> None:
        self._deltas.put_nowait(Delta(choice, fragments, logprobs))

    def start(self) -> asyncio.Task[CallAnswer]:
        """The engine works; the task ends when the answer is stored."""
        self._tasks = [asyncio.create_task(sampler.run()) for sampler in self._samplers]
        self._work = asyncio.create_task(self._run(), name=f"completion {self.completion_id}")
        return self._work

    async def deltas(self) -> AsyncIterator[Delta]:
        """What is said, as it is said. Ends also when the answer fails: ``answer`` then raises why."""
        while (delta := await self._deltas.get()) is not None:
            yield delta

    async def answer(self) -> CallAnswer:
        """The whole answer, stored. Raises EngineError, or what the store raises."""
        assert self._work is not None, "the exchange was not started"
        return await asyncio.shield(self._work)

    async def leave(self) -> None:
        """The client has gone: the engine stops, what was sampled is stored as cut short.

        Unless ``outlives_client``: then the answer is brought to its end for the client's next try.
        """
        if self.outlives_client:
            return
        await asyncio.gather(*(sampler.leave() for sampler in self._samplers))
        _, late = await asyncio.wait(self._tasks, timeout=CUT_TIMEOUT_S)
        for task in late:
            task.cancel()

    async def _run(self) -> CallAnswer:
        try:
            return await self._stored(await self._sampled())
        except EngineError as error:
            await self._stop_all()
            await self._keep_failure(error)
            if self.call.has_grammar and isinstance(error, EngineRejected):
                field = self.call.format_field
                raise BadInput(f"{field}: the engine cannot follow this schema", param=field) from error
            raise
        except asyncio.CancelledError:
            await self._stop_all()
            late = EngineUnavailable("the answer was cut short and the engine did not hand over what it had")
            await self._keep_failure(late)
            raise late from None
        except Exception:
            await self._stop_all()
            raise
        finally:
            self._deltas.put_nowait(None)
            for call in self._at_end:
                call()
            self._samplers = []  # they hold ``emit``, and so this: nothing would be freed before the next collection

    async def _sampled(self) -> list[SampledChoice]:
        call, opening = self.call, self.opening
        with chat_span(
            call.model,
            self.sampling,
            None if opening is None else opening.new.id,
            more=call.sampling.more,
            num_choices=call.num_choices,
            is_streamed=call.is_streamed,
        ) as span:
            choices = await asyncio.gather(*self._tasks)
            generations = [choice.generation for choice in choices]
            finishes = [choice.finish for choice in choices]
            answered(span, call.model, generations, finishes, self.num_prompt_tokens, self.completion_id)
        return choices

    async def _stop_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stored(self, choices: Sequence[SampledChoice]) -> CallAnswer:
        stored: Stored | None = None
        is_something = any(len(choice.generation.token_ids) or choice.finish != "cancelled" for choice in choices)
        if self.opening is not None and is_something:
            stored = await self._capture.answer(self.opening, self.captured, choices)
        answers = [
            ChoiceAnswer(
                index=index,
                answer=choice.answer,
                finish=choice.finish,
                logprobs=choice.logprobs,
                weight_version=max((run.version for run in choice.generation.version_runs), default=None),
                turn=None if stored is None else stored.turns[index],
            )
            for index, choice in enumerate(choices)
        ]
        usage = Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=sum(len(choice.generation.token_ids) for choice in choices),
            cached_tokens=min(choice.generation.num_cached_tokens for choice in choices),
        )
        first = answers[0]
        episode_id = None if stored is None else stored.episode_id
        if episode_id is not None:
            tracing.set_on_current(EPISODE, episode_id)
        receipt = Receipt(self.completion_id, episode_id, first.turn, first.weight_version)
        return CallAnswer(receipt, answers, usage, self.created_at)

    async def _keep_failure(self, error: OnlineAgentError) -> None:
        """An answer that failed is no turn; what was sampled of it is kept for whoever looks into it."""
        log.warning("completion failed", completion_id=self.completion_id, reason=error.message)
        partial = [(s.answer.text, s.unfinished()) for s in self._samplers if s.token_ids]
        if self.opening is None or not partial:
            return
        try:
            await self._capture.failure(self.opening, self.captured, error, partial)
        except OnlineAgentError as refused:
            log.warning("failed completion not kept", completion_id=self.completion_id, reason=refused.message)
