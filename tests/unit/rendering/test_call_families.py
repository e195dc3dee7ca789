"""What of an answer reaches the parser of a family, and what looks like a call of it."""

from __future__ import annotations

from typing import get_args

import pytest

from online_agent.config.serving import ToolCallFamily
from online_agent.rendering.call_families import FAMILIES, HERMES, foreign_family


def test_every_family_that_can_be_configured_is_read_here_or_by_a_parser() -> None:
    assert {HERMES, *FAMILIES} == set(get_args(ToolCallFamily))


@pytest.mark.parametrize(
    ("family", "text", "whole", "rest"),
    [
        ("llama3", '<|python_tag|>{"a": {"b": "}"}}; {"c": 1}', '<|python_tag|>{"a": {"b": "}"}}; {"c": 1}', ""),
        ("llama3", '<|python_tag|>{"a": 1};{"b": {"name": "rm"}', '<|python_tag|>{"a": 1}', ';{"b": {"name": "rm"}'),
        ("llama3", "<|python_tag|>print(1)", "", "<|python_tag|>print(1)"),
        ("qwen3_coder", "<tool_call>a</tool_call><tool_call>b", "<tool_call>a</tool_call>", "<tool_call>b"),
        ("glm45", "<tool_call>a", "", "<tool_call>a"),
        (
            "deepseekv31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
            "",
        ),
    ],
)  # fmt: skip
def test_only_whole_calls_reach_the_parser(family: str, text: str, whole: str, rest: str) -> None:
    assert text[: FAMILIES[family].whole(text)] == whole
    assert FAMILIES[family].rest(text) == rest


@pytest.mark.parametrize("body", ['{"x": ' * 3000, '{"x": NaN', "{'x': 1}"])
def test_objects_that_json_cannot_end_reach_no_parser(body: str) -> None:
    assert FAMILIES["llama3"].whole(f"<|python_tag|>{body}") == 0


@pytest.mark.parametrize(
    ("family", "text", "num_read", "has_unread"),
    [
        ("mistral", "[TOOL_CALLS] [{", 0, True),
        ("mistral", "[TOOL_CALLS] [{}]", 1, False),
        ("pythonic", "[read_file(", 0, True),
        ("pythonic", "[1] says so", 0, False),
        ("qwen3_coder", "<tool_call>a</tool_call><tool_call>b", 1, True),
        ("qwen3_coder", "<tool_call>a</tool_call>", 1, False),
        ("llama3", ' {"name": ', 0, True),
    ],
)
def test_a_call_that_was_begun_and_not_read_is_known(family: str, text: str, num_read: int, has_unread: bool) -> None:
    assert FAMILIES[family].has_unread(text, num_read) is has_unread


@pytest.mark.parametrize(
    ("text", "family", "other"),
    [
        ('[TOOL_CALLS] [{"name": "f"}]', HERMES, "mistral"),
        ('<tool_call>{"name": "f"}</tool_call>', "mistral", HERMES),
        ("<tool_call>\n<function=f>", "qwen3_coder", None),
        ('<|python_tag|>{"name": "f"}', "llama3", None),
        ("nothing of the kind [1]", HERMES, None),
    ],
)
def test_calls_in_the_form_of_another_family_are_known(text: str, family: str, other: str | None) -> None:
    assert foreign_family(text, family) == other


def test_a_leading_brace_begins_calls_of_llama_only_where_nothing_stands_before_it() -> None:
    family = FAMILIES["llama3"]
    assert family.find(' {"name": 1}', is_first=True) == 1
    assert family.find('{"name": 1}', is_first=False) == -1
    assert family.find('so <|python_tag|>{"name": 1}', is_first=False) == 3


@pytest.mark.parametrize(
    ("family", "any_tool", "one_tool"),
    [
        ("llama3", '<|python_tag|>{"name": "', '<|python_tag|>{"name": "f", "parameters": '),
        ("mistral", '[TOOL_CALLS] [{"name": "', '[TOOL_CALLS] [{"name": "f", "arguments": '),
        ("pythonic", "[", "[f("),
        ("qwen3_coder", "<tool_call>\n<function=", "<tool_call>\n<function=f>\n"),
    ],
)
def test_an_answer_that_must_be_a_call_begins_in_the_form_of_its_family(
    family: str, any_tool: str, one_tool: str
) -> None:
    assert FAMILIES[family].forced_beginning(None) == any_tool
    assert FAMILIES[family].forced_beginning("f") == one_tool
