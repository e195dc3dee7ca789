"""Ids to text one by one (C20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.rendering import ChatRenderer
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer.load(write_tiny_model(tmp_path_factory.mktemp("decoding") / "model"))


def parts_of(renderer: ChatRenderer, ids: list[int]) -> list[str]:
    stream = renderer.encoder.text_stream()
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def test_c20_a_character_comes_when_its_last_byte_does(renderer: ChatRenderer) -> None:
    ids = renderer.encode_text("a😊b").tolist()
    parts = parts_of(renderer, ids)
    assert "".join(parts) == "a😊b"
    assert "�" not in "".join(parts)
    assert parts[ids.index(renderer.encode_text("b").tolist()[0])] == "b"


def test_c20_a_cut_character_is_replaced_once_at_the_end(renderer: ChatRenderer) -> None:
    *parts, last = parts_of(renderer, renderer.encode_text("a😊").tolist()[:-1])
    assert "".join(parts) == "a"
    assert last == "�"


@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60))
def test_the_parts_joined_are_the_text_of_all_ids(renderer: ChatRenderer, ids: list[int]) -> None:
    assert "".join(parts_of(renderer, ids)) == renderer.decode(ids)
    at_once = renderer.encoder.text_stream()
    assert [at_once.push_all(ids), at_once.finish()] == [renderer.decode(ids), ""]


@given(text=st.text(max_size=40))
def test_the_bytes_of_tokens_joined_are_those_of_the_text(renderer: ChatRenderer, text: str) -> None:
    ids = renderer.encode_text(text).tolist()
    assert b"".join(map(renderer.encoder.token_bytes, ids)) == text.encode("utf-8", "surrogatepass")


def test_a_control_token_stands_for_its_own_text(renderer: ChatRenderer) -> None:
    [end] = renderer.encode_template_text("<|im_end|>").tolist()
    assert renderer.encoder.token_bytes(end) == b"<|im_end|>"


def test_nul_is_replaced_in_the_text_and_kept_in_the_bytes(renderer: ChatRenderer) -> None:
    ids = renderer.encode_text("a\x00b").tolist()
    assert renderer.decode(ids) == "".join(parts_of(renderer, ids)) == "a\ufffdb"
    assert b"".join(map(renderer.encoder.token_bytes, ids)) == b"a\x00b"
