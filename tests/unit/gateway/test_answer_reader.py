"""Where an answer ends by its client's rules, counted in sampled ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.gateway.answer_reader import AnswerReader
from online_agent.gateway.sampler import clipped
from online_agent.rendering import ChatRenderer
from online_agent.types import Generation, VersionRun
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer.load(write_tiny_model(tmp_path_factory.mktemp("reader") / "model"))


def test_a_stop_string_over_several_tokens_ends_it_at_the_token_that_completes_it(renderer: ChatRenderer) -> None:
    ids = renderer.encode_text("hello\n\nworld").tolist()
    reader = AnswerReader(renderer, stop=("\n\nw",))
    reader.push(ids)
    assert (reader.answer.text, reader.answer.stop_string, reader.is_over) == ("hello", "\n\nw", True)
    kept = renderer.decode(ids[: reader.num_tokens])
    assert "\n\nw" in kept
    assert "\n\nw" not in renderer.decode(ids[: reader.num_tokens - 1])


def test_of_two_stop_strings_the_first_in_the_text_counts(renderer: ChatRenderer) -> None:
    reader = AnswerReader(renderer, stop=("world", "lo"))
    reader.push(renderer.encode_text("hello world").tolist())
    assert (reader.answer.text, reader.answer.stop_string) == ("hel", "lo")


def test_what_may_begin_a_stop_string_is_held_back_and_told_when_it_does_not(renderer: ChatRenderer) -> None:
    reader = AnswerReader(renderer, stop=("lox",))
    reader.push(renderer.encode_text("hello").tolist())
    assert reader.answer.text == "hel"
    reader.finish()
    assert reader.answer.text == "hello"


@given(
    ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40),
    cut=st.integers(0, 40),
    stop=st.sampled_from([("a",), ()]),
)
def test_ids_read_in_two_pieces_give_the_answer_of_one(
    renderer: ChatRenderer, ids: list[int], cut: int, stop: tuple[str, ...]
) -> None:
    whole, parts = (AnswerReader(renderer, stop=stop, reads_calls=True) for _ in range(2))
    whole.push(ids, is_whole=True)
    parts.push(ids[:cut])
    parts.push(ids[cut:])
    for reader in (whole, parts):
        reader.finish()
    assert (whole.answer.text, whole.num_tokens) == (parts.answer.text, parts.num_tokens)


def test_a_generation_is_clipped_with_all_that_belongs_to_its_ids() -> None:
    generation = Generation(
        token_ids=np.arange(5, dtype=np.int32),
        logprobs=np.full(5, -0.5, np.float32),
        version_runs=(VersionRun(1, 0, 2), VersionRun(2, 2, 4), VersionRun(3, 4, 5)),
        finish_reason="stop",
        num_prompt_tokens=3,
        routed_experts=np.arange(7, dtype=np.uint8).reshape(7, 1, 1),
    )
    short = clipped(generation, 3)
    assert short.routed_experts is not None
    assert short.routed_experts.ravel().tolist() == [0, 1, 2, 3, 4]  # 3 of the prompt, 2 of the 3 that are kept
    assert short.token_ids.tolist() == [0, 1, 2]
    assert len(short.logprobs) == 3
    assert short.version_runs == (VersionRun(1, 0, 2), VersionRun(2, 2, 3))
    assert clipped(generation, 9) is generation
