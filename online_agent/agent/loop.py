"""The agent loop: prompt → engine → tool calls → observations, until the agent submits or a limit is reached.

Invariants
- Sampled ids are never made again from text: each turn's prompt is the stored ids plus what the template adds.
- Exactly the sampled ids are actions; all else is prompt, observation or template.
- Each turn is recorded when it ends, under the environment revision it ran under, before the next one begins.
- The agent's own limits are results. What the engine or the sandbox could not do raises.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from envs.types import Observation
from online_agent.agent.policy import CutShort, Policy
from online_agent.agent.requests import EpisodeEvent, observation_event, tool_call_event, turn_event
from online_agent.agent.secrets import Secrets
from online_agent.agent.world import World
from online_agent.errors import EngineRejected
from online_agent.rendering import Piece, parse_tool_calls
from online_agent.store.expert_rows import pack_experts
from online_agent.store.records import ChangeRecord, TurnNew
from online_agent.telemetry.model_calls import TOOL_ERROR, tool_span
from online_agent.telemetry.tracing import failed
from online_agent.types import Generation, Limits, Sampling, Span, SpanKind, StopReason, ToolCall

Record = Callable[[TurnNew, str | None], Awaitable[Sequence[ChangeRecord]]]
"""Stores a turn, and why it cannot be trained on if that is so; returns the changes that are active now."""

Tell = Callable[[EpisodeEvent], None]


class AgentLoop:
    """One episode: ``run`` goes through its turns."""

    def __init__(
        self,
        policy: Policy,
        world: World,
        sampling: Sampling,
        limits: Limits,
        *,
        secrets: Secrets,
        record: Record,
        tell: Tell,
    ) -> None:
        self._policy, self._world, self._sampling, self._limits = policy, world, sampling, limits
        self._secrets, self._record, self._tell = secrets, record, tell
        self._tokens = np.empty(policy.max_sequence_tokens, np.int32)
        self._num_tokens = self._num_sampled = self._num_routed = 0

    async def run(self) -> StopReason:
        """Why the episode ended. Raises EngineError or SandboxFailed for an outage.

        When cancelled, what was sampled of the turn under way is recorded first.
        """
        world = self._world
        prompt = self._policy.renderer.render_prompt(world.system_prompt(), world.task.prompt, world.tools)
        if not self._room_after(prompt):
            num_tokens = sum(len(piece.token_ids) for piece in prompt)
            raise EngineRejected(f"the prompt of {num_tokens} tokens leaves no room in {len(self._tokens)}")
        leading = self._append(prompt, turn=0)
        turn = 0
        while True:
            reason = await self._take_turn(turn, leading)
            if reason is not None:
                return reason
            turn, leading = turn + 1, []

    async def _take_turn(self, turn: int, leading: Sequence[Span]) -> StopReason | None:
        """One engine call and what it led to, recorded; the reason to stop, if there is one."""
        sampled, generation, said = await self._sample(turn, leading)
        calls = parse_tool_calls(said)
        versions = [run.version for run in generation.version_runs]
        self._tell(turn_event(turn, said, sampled.finish_reason, len(generation.token_ids), versions))
        try:
            observations = await self._answer(calls, turn)
        except asyncio.CancelledError:
            await self._record(sampled, generation.misalignment)
            raise
        last_id = int(generation.token_ids[-1]) if len(generation.token_ids) else None
        following = self._policy.renderer.render_observations([o.text for o in observations], last_id)
        reason = self._reason_to_stop(turn, observations, following)
        spans = [*sampled.spans, *([] if reason else self._append(following, turn))]
        kept_calls = self._secrets.calls(calls[: len(observations)])
        whole = replace(sampled, spans=spans, tool_calls=kept_calls, observations=observations)
        self._world.hold(await self._record(whole, generation.misalignment))
        return reason

    async def _sample(self, turn: int, leading: Sequence[Span]) -> tuple[TurnNew, Generation, str]:
        """The turn so far: what led to it and what was sampled, as it is kept; and the text as it was said."""
        started_at = time.monotonic()
        sampling = replace(self._sampling, max_new_tokens=min(self._sampling.max_new_tokens, self._room_after(())))
        try:
            generation = await self._policy.sample(self._tokens[: self._num_tokens], sampling, self._num_routed)
        except CutShort as cut:
            if cut.generation is not None:
                kept = self._secrets.generation(cut.generation)
                await self._record(self._sampled(turn, leading, kept, started_at), kept.misalignment)
            raise asyncio.CancelledError from None
        kept = self._secrets.generation(generation)
        return self._sampled(turn, leading, kept, started_at), kept, self._text_of(generation)

    def _sampled(self, turn: int, leading: Sequence[Span], generation: Generation, started_at: float) -> TurnNew:
        action = Span(SpanKind.ACTION, turn, generation.token_ids, generation.logprobs, generation.version_runs)
        self._num_sampled += len(action.token_ids)
        self._extend(action)
        return TurnNew(
            spans=[*leading, action],
            env_revision=self._world.env_revision,
            text=self._text_of(generation),
            finish_reason=generation.finish_reason,
            num_prompt_tokens=generation.num_prompt_tokens,
            num_cached_tokens=generation.num_cached_tokens,
            num_retractions=generation.num_retractions,
            latency_s=time.monotonic() - started_at,
            routed_experts=self._packed_experts(generation),
        )

    def _packed_experts(self, generation: Generation) -> bytes | None:
        """Those of the tokens that no earlier turn covers. What a turn fails to return, the next one is asked for."""
        if generation.routed_experts is None:
            return None
        packed = pack_experts(generation.routed_experts, first_token=self._num_routed)
        self._num_routed += len(generation.routed_experts)
        return packed

    async def _answer(self, calls: Sequence[ToolCall], turn: int) -> list[Observation]:
        """Calls run in their order; those after a final one are not run."""
        observations: list[Observation] = []
        for call in calls:
            self._tell(tool_call_event(turn, call))
            with tool_span(call.name, is_offered=self._world.offers(call.name)) as span:
                observation = self._secrets.observation(await self._world.answer(call))
                if observation.is_error:
                    failed(span, TOOL_ERROR)
            observations.append(observation)
            self._tell(observation_event(turn, observation))
            if observation.is_final:
                break
        return observations

    def _reason_to_stop(
        self, turn: int, observations: Sequence[Observation], following: Sequence[Piece]
    ) -> StopReason | None:
        if not observations:
            return StopReason.NO_TOOL_CALL
        if observations[-1].is_final:
            return StopReason.SUBMITTED
        if turn + 1 >= self._limits.max_turns:
            return StopReason.MAX_TURNS
        return None if self._room_after(following) else StopReason.MAX_TOKENS

    def _room_after(self, pieces: Iterable[Piece]) -> int:
        """How many tokens may still be sampled once the pieces follow."""
        num_tokens = self._num_tokens + sum(len(piece.token_ids) for piece in pieces)
        return max(0, min(self._limits.max_tokens - self._num_sampled, len(self._tokens) - num_tokens))

    def _append(self, pieces: Iterable[Piece], turn: int) -> list[Span]:
        spans = [Span(piece.kind, turn, piece.token_ids) for piece in pieces]
        for span in spans:
            self._extend(span)
        return spans

    def _extend(self, span: Span) -> None:
        end = self._num_tokens + len(span.token_ids)
        self._tokens[self._num_tokens : end] = span.token_ids
        self._num_tokens = end

    def _text_of(self, generation: Generation) -> str:
        ids = generation.token_ids.tolist()
        if ids and ids[-1] in self._policy.renderer.stop_token_ids:
            ids.pop()
        return self._policy.renderer.decode(ids)
