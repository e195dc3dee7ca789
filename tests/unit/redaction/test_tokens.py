"""Ids that spell a secret become blank, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.redaction import Redactor
from online_agent.redaction.patterns import BLANK
from online_agent.redaction.tokens import blanked
from online_agent.rendering import ChatRenderer
from online_agent.types import Int32Array
from tests.fakes.secrets import PARTS, SECRETS
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model

redactor = Redactor.of()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer.load(write_tiny_model(tmp_path_factory.mktemp("tokens") / "model"))


@pytest.mark.parametrize("name", SECRETS)
def test_each_id_of_a_secret_is_blank_and_what_stands_around_it_stays(renderer: ChatRenderer, name: str) -> None:
    before, after = renderer.encode_text("é😊 say: "), renderer.encode_text(" and 😊 go on<|im_end|>")
    ids = np.concatenate([before, renderer.encode_text(SECRETS[name]), after])
    left, names = blanked(redactor, renderer, ids)
    assert names == (name,)
    assert len(left) == len(ids)
    assert PARTS[name] not in renderer.decode(left)
    assert left[: len(before)].tolist() == before.tolist()
    assert left[-len(after) :].tolist() == after.tolist()
    assert BLANK * 4 in renderer.decode(left)


@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60))
def test_ids_without_a_secret_stay_as_they_are(renderer: ChatRenderer, ids: list[int]) -> None:
    array = np.array(ids, np.int32)
    if not redactor.find(renderer.decode(array)):
        assert blanked(redactor, renderer, array) == (array, ())


def test_where_the_secret_shows_only_when_the_text_is_read_all_ids_become_blank(renderer: ChatRenderer) -> None:
    ids = renderer.encode_text("K 9f8e7d6c")

    def reversed_words(token_ids: Int32Array) -> list[str]:
        return [SECRETS["aws_key"]] if "9f8e" in renderer.decode(token_ids) else []

    left, names = blanked(redactor, renderer, ids, reversed_words)
    assert names == ("aws_key",)
    assert renderer.decode(left) == BLANK * len(ids)
