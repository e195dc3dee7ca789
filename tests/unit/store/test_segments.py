"""A tree of turns as training rows: each action once, behind exactly the tokens it was sampled behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from online_agent.store.records import CompletionLink
from online_agent.store.segments import TrainableTurn, TurnTree, training_rows
from online_agent.types import Span, SpanKind, VersionRun


def link(turn: int, segment: int, branched_from: int | None = None) -> CompletionLink:
    return CompletionLink(turn, f"c{turn}", 0, segment, branched_from, "", "", "", 0, False, 0.0)


def spans(turn: int) -> list[Span]:
    """Two prompt ids 10t, 10t+1, then two actions 10t+5, 10t+6."""
    action = np.array([10 * turn + 5, 10 * turn + 6], np.int32)
    logprobs = np.array([-0.5, -0.25], np.float32)
    return [
        Span(SpanKind.PROMPT, turn, np.array([10 * turn, 10 * turn + 1], np.int32)),
        Span(SpanKind.ACTION, turn, action, logprobs, (VersionRun(turn, 0, 2),)),
    ]


def rows_of(turns: list[TrainableTurn]) -> list[tuple[str, list[int], list[int]]]:
    """Id, all tokens and action tokens of each row."""
    rows = training_rows("ep", turns, {turn.link.turn: spans(turn.link.turn) for turn in turns}, 1.0)
    return [(row.id, row.token_ids.tolist(), row.token_ids[row.action_mask].tolist()) for row in rows]


def test_a_branch_is_a_row_with_the_turns_it_left_as_context() -> None:
    tree = [link(0, 0), link(1, 0), link(2, 1, branched_from=0), link(3, 1)]
    rows = rows_of([TrainableTurn(each, 1.0, True) for each in tree])
    zero, one, two, three = ([10 * t, 10 * t + 1, 10 * t + 5, 10 * t + 6] for t in range(4))
    assert rows == [
        ("ep", zero + one, [5, 6, 15, 16]),
        ("ep#1", zero + two + three, [25, 26, 35, 36]),
    ]


def test_a_turn_that_is_not_trained_on_is_context_and_nothing_follows_the_last_action() -> None:
    turns = [
        TrainableTurn(link(0, 0), 1.0, False),
        TrainableTurn(link(1, 0), 1.0, True),
        TrainableTurn(link(2, 0), 1.0, False),
    ]
    assert rows_of(turns) == [("ep", [0, 1, 5, 6, 10, 11, 15, 16], [15, 16])]
    assert rows_of([TrainableTurn(link(0, 0), 1.0, False)]) == []


def test_each_temperature_of_a_segment_is_a_row() -> None:
    turns = [
        TrainableTurn(link(0, 0), 0.5, True),
        TrainableTurn(link(1, 0), 1.0, True),
        TrainableTurn(link(2, 0), 0.5, True),
    ]
    rows = training_rows("ep", turns, {t: spans(t) for t in range(3)}, 1.0)
    assert [(row.temperature, row.token_ids[row.action_mask].tolist()) for row in rows] == [
        (0.5, [5, 6, 25, 26]),
        (1.0, [15, 16]),
    ]


def test_a_branch_of_a_branch_goes_back_to_the_beginning() -> None:
    tree = TurnTree([link(0, 0), link(1, 0), link(2, 1, 0), link(3, 1), link(4, 2, 2)])
    assert tree.path(4) == [0, 2, 4]
    assert tree.before(4) == 2
    assert tree.before(0) is None
    assert [tree.is_leaf(turn) for turn in range(5)] == [False, True, False, True, True]


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=10), st.data())
def test_each_trainable_action_is_in_exactly_one_row(parents: list[int], data: st.DataObject) -> None:
    """Turns continue any earlier one (-1: none), as clients do."""
    links: list[CompletionLink] = []
    num_segments = 0
    for turn, parent in enumerate(parents):
        known = TurnTree(links)
        if 0 <= parent < turn and known.is_tip(parent):
            links.append(link(turn, links[parent].segment))
            continue
        links.append(link(turn, num_segments, parent if 0 <= parent < turn else None))
        num_segments += 1
    turns = [TrainableTurn(each, data.draw(st.sampled_from([0.5, 1.0])), data.draw(st.booleans())) for each in links]
    trained = [token for _, _, actions in rows_of(turns) for token in actions]
    expected = [token for t in turns if t.is_trainable for token in (10 * t.link.turn + 5, 10 * t.link.turn + 6)]
    assert sorted(trained) == sorted(expected)
