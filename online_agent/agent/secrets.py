"""Secrets of one episode of the served agent: out of what it is shown, and out of what is kept of what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envs.types import Observation
from online_agent.redaction import Redactor
from online_agent.redaction.redactor import texts_of
from online_agent.redaction.tokens import blanked, sampled_secret
from online_agent.rendering import ChatRenderer, parse_tool_calls
from online_agent.types import Generation, Int32Array, ToolCall


class Secrets:
    def __init__(self, redactor: Redactor, renderer: ChatRenderer) -> None:
        self._redactor, self._renderer = redactor, renderer

    def generation(self, generation: Generation) -> Generation:
        """As it is kept, and as later turns are sampled behind it; one that held a secret cannot be trained on."""
        ids, names = blanked(self._redactor, self._renderer, generation.token_ids, self._texts_of)
        if not names:
            return generation
        return replace(generation, token_ids=ids, misalignment=generation.misalignment or sampled_secret(names))

    def observation(self, observation: Observation) -> Observation:
        return replace(observation, text=self._redactor.text(observation.text))

    def calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """As they are stored; what is run is what was sampled."""
        return [self._redactor.call(call) for call in calls]

    def _texts_of(self, token_ids: Int32Array) -> list[str]:
        calls = parse_tool_calls(self._renderer.decode(token_ids))
        return [text for call in calls for text in texts_of(dict(call.arguments))]
