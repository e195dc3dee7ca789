"""Plain messages → turns. Their ids are ours, not those that were sampled: such an episode is never trained on."""

from __future__ import annotations

from collections.abc import Sequence

from online_agent.errors import BadInput
from online_agent.rendering import ChatRenderer
from online_agent.rendering.conversation import ConversationRenderer
from online_agent.rendering.messages import ChatMessage
from online_agent.rendering.plans import Piece
from online_agent.store.records import TurnNew
from online_agent.types import Span, SpanKind

TEXT_ONLY = "text only: no token ids and log-probs of what was sampled"


def turns_of_messages(messages: Sequence[ChatMessage], renderer: ChatRenderer) -> list[TurnNew]:
    """A turn for each assistant message, behind what stands before it; what follows the last one is left out.

    Raises BadInput when the first message is an assistant's, when there is none of an assistant, or when the model's
    template cannot write them.
    """
    conversation = ConversationRenderer(renderer)
    turns: list[TurnNew] = []
    before: list[ChatMessage] = []
    for message in messages:
        if message.role != "assistant":
            before.append(message)
            continue
        if not turns and not before:
            raise BadInput("messages: the first one is the assistant's, so nothing was asked", param="messages")
        pieces = (
            conversation.render_continuation(before, None, {}) if turns else conversation.render_start(before, (), {})
        )
        turns.append(_turn(len(turns), pieces, message.text, renderer))
        before = []
    if not turns:
        raise BadInput("messages: none is the assistant's", param="messages")
    return turns


def _turn(number: int, pieces: Sequence[Piece], text: str, renderer: ChatRenderer) -> TurnNew:
    spans = [Span(piece.kind, number, piece.token_ids) for piece in pieces]
    action = Span(SpanKind.ACTION, number, renderer.encode_text(text))
    return TurnNew([*spans, action], text=text, num_prompt_tokens=sum(len(span.token_ids) for span in spans))
