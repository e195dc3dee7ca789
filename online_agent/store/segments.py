"""The turns of a client's episode as paths: which tokens each was sampled behind, and the rows they are trained as.

A segment is a run of turns that continue each other. One that branched off shows the turns it left, and theirs before
them, as context. Each action is trained once: in the row of its own segment, under the temperature it was sampled at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from online_agent.store.expert_rows import experts_of
from online_agent.store.records import CompletionLink
from online_agent.types import Span, SpanKind, TrainingEpisode, training_episode

SEGMENT_MARK = "#"
"""An exported segment is named by its episode, this, and its number."""


@dataclass(frozen=True, slots=True)
class TrainableTurn:
    """Where a turn stands, how it was sampled, and whether its action may be trained on."""

    link: CompletionLink
    temperature: float
    is_trainable: bool


class TurnTree:
    """``links`` in order of their turns."""

    def __init__(self, links: Sequence[CompletionLink]) -> None:
        self._of_turn = {link.turn: link for link in links}
        self.segments: dict[int, list[CompletionLink]] = defaultdict(list)
        for link in links:
            self.segments[link.segment].append(link)
        self._left = {link.branched_from for link in links if link.branched_from is not None}

    def link(self, turn: int) -> CompletionLink | None:
        return self._of_turn.get(turn)

    def path(self, turn: int) -> list[int]:
        """The turns whose tokens, end to end, are the sequence up to and with ``turn``."""
        path: list[int] = []
        at: int | None = turn
        while at is not None:
            segment = self.segments[self._of_turn[at].segment]
            path[:0] = [link.turn for link in segment if link.turn <= at]
            at = segment[0].branched_from
        return path

    def before(self, turn: int) -> int | None:
        """The turn that this one continues."""
        path = self.path(turn)
        return path[-2] if len(path) > 1 else None

    def is_tip(self, turn: int) -> bool:
        """Whether the segment of the turn ends with it."""
        return self.segments[self._of_turn[turn].segment][-1].turn == turn

    def is_leaf(self, turn: int) -> bool:
        """Whether no other turn continues it."""
        return self.is_tip(turn) and turn not in self._left


def as_context(spans: Sequence[Span]) -> list[Span]:
    """The same tokens, none of them an action."""
    return [Span(SpanKind.PROMPT, s.turn, s.token_ids) if s.kind is SpanKind.ACTION else s for s in spans]


def training_rows(
    episode_id: str,
    turns: Sequence[TrainableTurn],
    spans_of: Mapping[int, Sequence[Span]],
    reward: float,
    blobs_of: Mapping[int, bytes | None] | None = None,
) -> list[TrainingEpisode]:
    """One row per segment and temperature, all with the one reward; ids are ``episode``, ``episode#1``, and so on.

    What follows the last action of a row is left out. ``blobs_of`` the turns are their packed experts. Raises
    MisalignedEpisode for turns that do not line up.
    """
    tree = TurnTree([turn.link for turn in turns])
    sampled = {turn.link.turn: turn for turn in turns if turn.is_trainable}
    rows: list[TrainingEpisode] = []
    for number in sorted(tree.segments):
        own = [link.turn for link in tree.segments[number] if link.turn in sampled]
        for temperature in sorted({sampled[turn].temperature for turn in own}):
            chosen = [turn for turn in own if sampled[turn].temperature == temperature]
            path = tree.path(chosen[-1])
            row_id = f"{episode_id}#{len(rows)}" if rows else episode_id
            row = training_episode(row_id, _row(path, chosen.__contains__, spans_of), reward, temperature)
            blobs = [blobs_of.get(turn) for turn in path] if blobs_of else ()
            rows.append(replace(row, routed_experts=experts_of(row, blobs)))
    return rows


def _row(path: Sequence[int], is_chosen: Callable[[int], bool], spans_of: Mapping[int, Sequence[Span]]) -> list[Span]:
    spans: list[Span] = []
    for turn in path:
        spans += spans_of[turn] if is_chosen(turn) else as_context(spans_of[turn])
    return spans
