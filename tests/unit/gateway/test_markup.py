"""Text, reasoning and calls come apart the same way however the text is cut."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.gateway.markup import Called, Fragment, MarkupReader, Said, Thought
from online_agent.types import ToolCall

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "<tool", "_call>", " ", "\n", "hello", "<", '{"na']
    ),
    max_size=8,
)


def read(parts: list[str], *, reads_calls: bool = True) -> list[Fragment]:
    reader = MarkupReader(reads_calls=reads_calls)
    fragments = [fragment for part in parts for fragment in reader.push(part)]
    return fragments + reader.finish()


def summed(fragments: list[Fragment]) -> tuple[str, str, list[tuple[int, str, str]]]:
    """Text, reasoning, and calls without their random ids."""
    text = "".join(f.text for f in fragments if isinstance(f, Said))
    thought = "".join(f.text for f in fragments if isinstance(f, Thought))
    return text, thought, [(f.index, f.name, f.arguments) for f in fragments if isinstance(f, Called)]


@given(pieces=PIECES, cuts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_answer_does_not_depend_on_how_the_text_is_cut(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    parts, at = [], 0
    while at < len(text):
        size = cuts[len(parts) % len(cuts)]
        parts.append(text[at : at + size])
        at += size
    assert summed(read(parts)) == summed(read([text]))


@given(text=st.text(max_size=60).filter(lambda text: not text.lstrip().startswith("<think>")))
def test_without_calls_to_read_every_character_is_text(text: str) -> None:
    assert summed(read([text], reads_calls=False)) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "said", "thought", "names"),
    [
        (f"I look.\n{CALL}", "I look.", "", ["f"]),
        (f"{CALL}\n{CALL}", "", "", ["f", "f"]),
        (f"{CALL} and then", " and then", "", ["f"]),
        ("<think>hm</think>\n\nhello", "hello", "hm", []),
        (f"<think>hm</think>{CALL}", "", "hm", ["f"]),
        ("<think>never closed", "", "never closed", []),
        ("not <think>at the start</think>", "not <think>at the start</think>", "", []),
        ('<tool_call>{"name": "f", "argum', '<tool_call>{"name": "f", "argum', "", []),
        ("<tool_call>not JSON</tool_call>", "<tool_call>not JSON</tool_call>", "", []),
        (f"<tool_call>broken{CALL}", "<tool_call>broken", "", ["f"]),
        ("<tool_call", "<tool_call", "", []),
        ("trailing space ", "trailing space ", "", []),
    ],
)
def test_what_is_said_thought_and_called(text: str, said: str, thought: str, names: list[str]) -> None:
    told, thoughts, calls = summed(read([text]))
    assert (told, thoughts, [name for _, name, _ in calls]) == (said, thought, names)
    assert [index for index, _, _ in calls] == list(range(len(calls)))


def test_a_call_whose_closing_tag_is_missing_is_one_if_it_is_whole() -> None:
    _, _, [(_, name, arguments)] = summed(read(['<tool_call>{"name": "f", "arguments": {"x": [1]}}']))
    assert (name, orjson.loads(arguments)) == ("f", {"x": [1]})


def test_text_that_could_begin_a_tag_waits_and_then_comes() -> None:
    reader = MarkupReader(reads_calls=True)
    assert summed(reader.push("a <tool_"))[0] == "a"
    assert summed(reader.push("box>"))[0] == " <tool_box>"


def test_calls_have_ids_of_their_own() -> None:
    ids = [fragment.id for fragment in read([CALL + CALL]) if isinstance(fragment, Called)]
    assert len(set(ids)) == 2


def finished(text: str, family: str = "hermes", read: list[ToolCall] | None = None) -> MarkupReader:
    reader = MarkupReader(reads_calls=True, family=family)
    reader.push(text)
    reader.finish(read or [])
    return reader


@pytest.mark.parametrize(
    ("text", "num_unread"),
    [
        (CALL, 0),
        ("no call", 0),
        (f'{CALL}<tool_call>{{"name": "f", "argum', 1),
        ("<tool_call>not JSON</tool_call><tool_call>[]</tool_call>", 2),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', 1),
    ],
)
def test_calls_that_were_begun_and_cannot_be_read_are_counted(text: str, num_unread: int) -> None:
    assert len(finished(text).unread) == num_unread
    assert all(call.error for call in finished(text).unread)


def test_calls_of_another_family_wait_for_what_its_parser_reads() -> None:
    reader = MarkupReader(reads_calls=True, family="mistral")
    assert summed(reader.push("I look. [TOOL_"))[0] == "I look."
    assert reader.push('CALLS] [{"name": "f", "arguments": {"x": 1}}]') == []
    assert reader.pending == '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]'
    assert summed(reader.finish([ToolCall("f", {"x": 1})])) == ("", "", [(0, "f", '{"x":1}')])
    assert reader.unread == []


def test_what_the_parser_of_another_family_cannot_read_stays_text() -> None:
    text = "I look. [TOOL_CALLS] [{"
    assert summed(read([text])) == summed(read([text], reads_calls=False))
    assert len(finished(text, "mistral").unread) == 1


@pytest.mark.parametrize("family", ["llama3", "mistral", "pythonic", "qwen3_coder", "kimi_k2"])
@given(pieces=st.lists(st.sampled_from(["<|python_tag|>", "{", "[TOOL_CALLS]", "[f(", " ", "hello", "<tool_call>"])))
def test_the_text_of_another_family_does_not_depend_on_how_it_is_cut(family: str, pieces: list[str]) -> None:
    def told(parts: list[str]) -> str:
        reader = MarkupReader(reads_calls=True, family=family)
        fragments = [fragment for part in parts for fragment in reader.push(part)]
        return summed(fragments + reader.finish())[0]

    text = "".join(pieces)
    assert told(list(text)) == told([text]) == text
