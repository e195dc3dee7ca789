"""Secrets of clients: taken out of a call before it is tokenised, and out of what is kept of its answer.

Invariants
- The model sees the redacted text, and histories are matched in it: a client that sends its secret with every call
  matches what was stored of the first.
- A secret that is sampled reaches the client, who may need the call that holds it, and nothing else: its ids are
  blank in the store and in every later prompt, and the turn is never trained on.
"""

from __future__ import annotations

from dataclasses import replace

from envs.types import ToolSpec
from online_agent.gateway.answer_reader import AnswerReader, AnswerText
from online_agent.gateway.calls import ChatCall
from online_agent.gateway.sampler import SampledChoice
from online_agent.redaction import Redactor
from online_agent.redaction.redactor import texts_of
from online_agent.redaction.tokens import all_blank, blanked, sampled_secret
from online_agent.rendering import ChatRenderer
from online_agent.rendering.messages import ChatMessage, SpokenCall
from online_agent.types import Int32Array, ToolCall


class Secrets:
    def __init__(self, redactor: Redactor, renderer: ChatRenderer) -> None:
        self._redactor, self._renderer = redactor, renderer

    def call(self, call: ChatCall) -> ChatCall:
        """The call as it is tokenised and stored."""
        return replace(
            call,
            messages=[self._message(message) for message in call.messages],
            tools=[self._tool(tool) for tool in call.tools],
            tags=self._redactor.json(call.tags),
        )

    def kept(self, choice: SampledChoice) -> tuple[SampledChoice, str | None]:
        """The choice as it is stored, and why it is not trained on if it held a secret."""
        found = {one.name for text in _texts(choice.answer) for one in self._redactor.find(text)}
        if not found:
            return choice, None
        ids, names = self.ids(choice.generation.token_ids)
        if not found <= set(names):  # it shows only in what was read from the ids: no single ones are to blame
            ids = all_blank(self._renderer, choice.generation.token_ids)
        kept = replace(choice, generation=replace(choice.generation, token_ids=ids), answer=self._answer(choice.answer))
        return kept, sampled_secret(sorted(found.union(names)))

    def ids(self, token_ids: Int32Array) -> tuple[Int32Array, tuple[str, ...]]:
        return blanked(self._redactor, self._renderer, token_ids, self._texts_of)

    def text(self, text: str) -> str:
        return self._redactor.text(text)

    def _texts_of(self, token_ids: Int32Array) -> list[str]:
        reader = AnswerReader(self._renderer, reads_calls=True)
        reader.push(token_ids.tolist())
        reader.finish()
        return _texts(reader.answer)

    def _message(self, message: ChatMessage) -> ChatMessage:
        calls = tuple(SpokenCall(call.name, self._redactor.json_text(call.arguments)) for call in message.calls)
        return replace(message, text=self._redactor.text(message.text), calls=calls)

    def _tool(self, tool: ToolSpec) -> ToolSpec:
        return ToolSpec(tool.name, self._redactor.text(tool.description), self._redactor.json(tool.parameters))

    def _unread(self, call: ToolCall) -> ToolCall:
        return replace(self._redactor.call(call), name=self._redactor.text(call.name))

    def _answer(self, answer: AnswerText) -> AnswerText:
        stop = answer.stop_string
        return replace(
            answer,
            text=self._redactor.text(answer.text),
            reasoning=self._redactor.text(answer.reasoning),
            calls=[replace(call, arguments=self._redactor.json_text(call.arguments)) for call in answer.calls],
            stop_string=None if stop is None else self._redactor.text(stop),
            unread=[self._unread(call) for call in answer.unread],
        )


def _texts(answer: AnswerText) -> list[str]:
    """All that is stored of it as text. Arguments once as they are written, and once as they are read."""
    texts = [answer.text, answer.reasoning, answer.stop_string or ""]
    for call in answer.calls:
        texts += [call.arguments, *texts_of(call.read_arguments())]
    for unread in answer.unread:
        texts += [unread.name, unread.error or "", *texts_of(dict(unread.arguments))]
    return texts
