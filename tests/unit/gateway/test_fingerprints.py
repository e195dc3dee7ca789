"""What counts as the same conversation, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import ToolSpec
from online_agent.gateway.fingerprints import chain, conversation_root, extended, message_fingerprint
from online_agent.rendering.messages import ChatMessage, SpokenCall

MESSAGES = st.lists(
    st.builds(ChatMessage, st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=8)), max_size=6
)


@given(messages=MESSAGES, cut=st.integers(0, 6))
def test_a_prefix_has_the_fingerprint_it_has_inside_the_whole(messages: list[ChatMessage], cut: int) -> None:
    assert chain("root", messages)[: cut + 1] == chain("root", messages[:cut])[: cut + 1]


@given(messages=MESSAGES)
def test_a_conversation_and_its_answer_are_the_longer_conversation(messages: list[ChatMessage]) -> None:
    answer = ChatMessage("assistant", "yes")
    assert extended(chain("root", messages)[-1], answer) == chain("root", [*messages, answer])[-1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ChatMessage("assistant", " hi\n"), ChatMessage("assistant", "hi")),
        (
            ChatMessage("assistant", "", (SpokenCall("f", '{"a": 1, "b": 2}'),)),
            ChatMessage("assistant", "", (SpokenCall("f", '{"b":2,"a":1}'),)),
        ),
    ],
)
def test_an_answer_may_come_back_in_other_clothes(one: ChatMessage, other: ChatMessage) -> None:
    assert message_fingerprint(one) == message_fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ChatMessage("user", " hi"), ChatMessage("user", "hi")),
        (ChatMessage("user", "hi"), ChatMessage("tool", "hi")),
        (
            ChatMessage("assistant", "", (SpokenCall("f", "{}"),)),
            ChatMessage("assistant", "", (SpokenCall("g", "{}"),)),
        ),
        (
            ChatMessage("assistant", "", (SpokenCall("f", '{"a'),)),
            ChatMessage("assistant", "", (SpokenCall("f", "{}"),)),
        ),
        (ChatMessage("assistant", "hi"), ChatMessage("assistant", "hi", (SpokenCall("f", "{}"),))),
    ],
)
def test_what_reads_differently_to_the_model_is_another_message(one: ChatMessage, other: ChatMessage) -> None:
    assert message_fingerprint(one) != message_fingerprint(other)


def test_other_tools_or_another_template_are_another_beginning() -> None:
    tool = ToolSpec("f", "", {"type": "object"})
    roots = {conversation_root("t", []), conversation_root("t", [tool]), conversation_root("u", [tool])}
    assert len(roots) == 3
