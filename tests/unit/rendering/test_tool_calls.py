import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.rendering import parse_tool_calls


def test_one_call_is_read_with_its_arguments() -> None:
    [call] = parse_tool_calls('<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>')
    assert (call.name, dict(call.arguments), call.error) == ("read_file", {"path": "a.py"}, None)


def test_several_calls_keep_their_order_and_text_around_them_is_ignored() -> None:
    text = (
        'let me look <tool_call>{"name": "a", "arguments": {}}</tool_call> then '
        '<tool_call>{"name": "b", "arguments": {"x": 1}}</tool_call> done'
    )
    assert [(c.name, dict(c.arguments)) for c in parse_tool_calls(text)] == [("a", {}), ("b", {"x": 1})]


@pytest.mark.parametrize("text", ["", "no call here", "</tool_call>", '{"name": "a", "arguments": {}}'])
def test_text_without_an_opening_tag_has_no_call(text: str) -> None:
    assert parse_tool_calls(text) == []


def test_a_call_cut_off_by_the_token_limit_is_an_error_and_the_one_before_it_is_kept() -> None:
    first, second = parse_tool_calls(
        '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{"name": "edit_file", "arguments": {"pa'
    )
    assert first.error is None
    assert second.error is not None
    assert "not valid JSON" in second.error
    assert dict(second.arguments) == {}


def test_whole_json_without_its_closing_tag_is_read() -> None:
    [call] = parse_tool_calls('<tool_call>{"name": "submit", "arguments": {}}')
    assert (call.name, call.error) == ("submit", None)


def test_missing_arguments_are_no_arguments() -> None:
    [call] = parse_tool_calls('<tool_call>{"name": "submit"}</tool_call>')
    assert (call.name, dict(call.arguments), call.error) == ("submit", {}, None)


def test_arguments_written_as_json_in_a_string_are_read() -> None:
    [call] = parse_tool_calls('<tool_call>{"name": "a", "arguments": "{\\"path\\": \\"x\\"}"}</tool_call>')
    assert (dict(call.arguments), call.error) == ({"path": "x"}, None)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [('"Beijing"', "a string"), ('["a"]', "a list"), ('""', "a string"), ("3", "a number"), ("null", "null"),
     ("true", "a boolean")],
)  # fmt: skip
def test_arguments_that_are_no_object_are_an_error_that_says_what_they_are(arguments: str, what: str) -> None:
    [call] = parse_tool_calls(f'<tool_call>{{"name": "a", "arguments": {arguments}}}</tool_call>')
    assert call.error == f"the arguments of a must be a JSON object, not {what}"


@pytest.mark.parametrize("body", ["[]", "3", '"x"', "null", "{}", '{"name": ""}', '{"name": 3}', "", "{'name': 'a'}"])
def test_a_body_that_is_no_named_call_is_an_error(body: str) -> None:
    [call] = parse_tool_calls(f"<tool_call>{body}</tool_call>")
    assert call.error
    assert call.name == ""


@pytest.mark.parametrize("value", ["NaN", "Infinity", "[" * 5000])
def test_values_json_does_not_know_and_bottomless_nesting_are_errors(value: str) -> None:
    [call] = parse_tool_calls(f'<tool_call>{{"name": "a", "arguments": {{"x": {value}}}}}</tool_call>')
    assert call.error


def test_nul_in_a_name_a_key_or_a_value_is_the_replacement_character() -> None:
    body = '{"name": "a\\u0000", "arguments": {"k\\u0000": ["x\\u0000y", {"z": "\\\\u0000"}]}}'
    [call] = parse_tool_calls(f"<tool_call>{body}</tool_call>")
    assert (call.name, call.error) == ("a\ufffd", None)
    assert dict(call.arguments) == {"k\ufffd": ["x\ufffdy", {"z": "\\u0000"}]}


@pytest.mark.parametrize(("depth", "is_read"), [(20, True), (21, False)])
def test_arguments_are_read_to_the_depth_at_which_they_can_be_handed_back(depth: int, is_read: bool) -> None:
    nested = "[" * (depth - 1) + "]" * (depth - 1)  # the object of the arguments is the first level
    [call] = parse_tool_calls(f'<tool_call>{{"name": "a", "arguments": {{"x": {nested}}}}}</tool_call>')
    assert (call.error is None) is is_read


@pytest.mark.parametrize(("length", "is_read"), [(256, True), (257, False)])
def test_a_name_is_read_to_the_length_at_which_it_can_be_handed_back(length: int, is_read: bool) -> None:
    [call] = parse_tool_calls(f'<tool_call>{{"name": "{"a" * length}", "arguments": {{}}}}</tool_call>')
    assert (call.error is None) is is_read


@given(st.text(alphabet=st.sampled_from(list('<tool_call>/{}"name:arguments[],1 \\')), max_size=200))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    assert len(parse_tool_calls(text)) == text.count("<tool_call>")
