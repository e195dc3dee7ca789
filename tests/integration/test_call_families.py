"""SGLang's own parsers, asked over HTTP: golden calls of each family, and what happens to calls that are cut off."""

from __future__ import annotations

import pytest

from envs.types import ToolSpec
from online_agent.gateway.markup import Called, MarkupReader, Said
from online_agent.rendering.call_families import FAMILIES
from online_agent.rendering.tool_schemas import tool_schemas
from online_agent.serving.client import EngineClient
from tests.engine_fixtures import RealEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STRING = {"type": "string"}
EDIT = ToolSpec("edit", "", {"type": "object", "properties": {"path": STRING, "line": {"type": "integer"}}})
RUN = ToolSpec("run", "", {"type": "object", "properties": {"cmd": STRING}})
TOOLS = tool_schemas([EDIT, RUN])
FIRST, SECOND = ("edit", {"path": "a.py", "line": 2}), ("run", {"cmd": "ls [x] {y}"})

GOLDEN = {
    "llama3": (
        '<|python_tag|>{"name": "edit", "parameters": {"path": "a.py", "line": 2}};'
        '{"name": "run", "parameters": {"cmd": "ls [x] {y}"}}'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "edit", "arguments": {"path": "a.py", "line": 2}}, '
        '{"name": "run", "arguments": {"cmd": "ls [x] {y}"}}]'
    ),
    "pythonic": '[edit(path="a.py", line=2), run(cmd="ls [x] {y}")]',
    "deepseekv3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>edit\n```json\n"
        '{"path": "a.py", "line": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n'
        '{"cmd": "ls [x] {y}"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseekv31": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>edit<｜tool▁sep｜>{"path": "a.py", "line": 2}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>run<｜tool▁sep｜>{"cmd": "ls [x] {y}"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0<|tool_call_argument_begin|>"
        '{"path": "a.py", "line": 2}<|tool_call_end|><|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>'
        '{"cmd": "ls [x] {y}"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=edit>\n<parameter=path>\na.py\n</parameter>\n<parameter=line>\n2\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=run>\n<parameter=cmd>\nls [x] {y}\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "glm45": (
        "<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>line</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>run\n<arg_key>cmd</arg_key>\n"
        "<arg_value>ls [x] {y}</arg_value>\n</tool_call>"
    ),
}
NESTED = '<|python_tag|>{"name": "edit", "parameters": {"path": {"name": "run", "parameters": {"cmd": "rm"}}, "li'

Calls = list[tuple[str, dict[str, object]]]


async def read(client: EngineClient, family: str, text: str) -> tuple[str, Calls, int]:
    """What is told as text, the calls, and how many could not be read: as the gateway reads the answer."""
    reader = MarkupReader(reads_calls=True, family=family)
    fragments = reader.push(text)
    parser = FAMILIES[family].parser
    found = await client.parse_calls(reader.pending, parser, TOOLS) if reader.pending else []
    fragments += reader.finish(found)
    told = "".join(fragment.text for fragment in fragments if isinstance(fragment, Said))
    calls = [(f.name, f.read_arguments()) for f in fragments if isinstance(f, Called)]
    return told, calls, len(reader.unread)


@pytest.mark.parametrize("family", FAMILIES)
async def test_two_calls_after_some_words_are_read(real_engine: RealEngine, family: str) -> None:
    async with real_engine.client() as client:
        assert await read(client, family, f"I look.\n{GOLDEN[family]}") == ("I look.", [FIRST, SECOND], 0)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_cut_off_anywhere_is_no_call(real_engine: RealEngine, family: str) -> None:
    """Wherever the answer ends, the calls are the first ones of the whole answer, each as it was written."""
    golden = GOLDEN[family]
    async with real_engine.client() as client:
        for end in range(1, len(golden)):
            _, calls, _ = await read(client, family, golden[:end])
            assert calls in ([], [FIRST], [FIRST, SECOND]), golden[:end]


async def test_an_object_inside_a_call_that_was_cut_off_is_no_call(real_engine: RealEngine) -> None:
    async with real_engine.client() as client:
        assert await read(client, "llama3", NESTED) == (NESTED, [], 1)


async def test_a_tool_that_is_not_there_is_called_all_the_same(real_engine: RealEngine) -> None:
    async with real_engine.client() as client:
        _, calls, _ = await read(client, "llama3", '<|python_tag|>{"name": "fly", "parameters": {}}')
    assert calls == [("fly", {})]
