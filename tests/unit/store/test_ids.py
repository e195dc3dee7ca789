"""Ids sort by creation, names are checked, steps have an identity."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.errors import BadInput
from online_agent.store.repositories.base import check_name, new_id
from online_agent.store.repositories.steps import step_identity


def test_ids_of_one_instant_are_unique_and_sort_by_creation() -> None:
    ids = [new_id("ep", 1_800_000_000.0) for _ in range(200)]
    assert len(set(ids)) == 200
    assert ids == sorted(ids)


def test_ids_made_by_many_threads_are_unique() -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend(new_id("ep", 1_800_000_000.0) for _ in range(100))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({identifier[:17] for identifier in ids}) == 800  # also without their random part


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", "a\x00b"])
def test_a_name_that_cannot_be_one_is_refused_by_field(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_name(name, "env")
    assert refused.value.param == "env"


_STEP = st.tuples(st.lists(st.text(max_size=4), max_size=4), st.text(max_size=4), st.integers(0, 5))


@given(_STEP, _STEP)
def test_two_steps_are_the_same_only_when_everything_is(
    one: tuple[list[str], str, int], two: tuple[list[str], str, int]
) -> None:
    assert (step_identity(*one) == step_identity(*two)) == (one == two)


def test_the_order_of_the_episodes_is_part_of_the_identity() -> None:
    assert step_identity(["a", "b"], "sao", 0) != step_identity(["b", "a"], "sao", 0)
    assert step_identity(["ab", "c"], "sao", 0) != step_identity(["a", "bc"], "sao", 0)
