"""The alarm for a model whose tool calls stop being readable, with its counts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.call_watch import CallWatch
from online_agent.gateway.markup import Called
from online_agent.store.records import EventRecord
from online_agent.types import ToolCall
from tests.fakes.gateway import READ_FILE, ClientDesk, call_text

READ = AnswerText(calls=[Called(0, "call_1", "f", "{}")])
UNREAD = AnswerText(unread=[ToolCall("", error="not JSON")])
USER = {"role": "user", "content": "fix it"}


class Watched:
    def __init__(self, desk: ClientDesk, threads: ThreadPoolExecutor) -> None:
        self.desk, self.told = desk, [0, 0]
        self.watch = CallWatch(desk.world.db, threads, "hermes", self._tell)

    def _tell(self, num_read: int, num_unread: int) -> None:
        self.told = [self.told[0] + num_read, self.told[1] + num_unread]

    def note(self, answer: AnswerText, times: int) -> None:
        for _ in range(times):
            self.watch.note(answer, 3)


@pytest.fixture
def watched(desk: ClientDesk) -> Iterator[Watched]:
    with ThreadPoolExecutor(1) as threads:
        yield Watched(desk, threads)


def events(watched: Watched) -> list[EventRecord]:
    """Oldest first, once all that was written is there."""
    watched.watch._threads.submit(lambda: None).result()
    with watched.desk.world.db.reading() as tx:
        return tx.events.latest(["tool_calls_unreadable", "tool_calls_readable"])[::-1]


async def test_half_of_twenty_answers_unread_is_one_event(watched: Watched) -> None:
    watched.note(READ, 10)
    watched.note(UNREAD, 9)
    watched.note(AnswerText("no call at all"), 30)
    assert events(watched) == []
    watched.note(UNREAD, 5)
    [event] = events(watched)
    assert (event.kind, event.version) == ("tool_calls_unreadable", 3)
    assert event.data == {"family": "hermes", "share": 0.5, "num_answers": 20}
    assert watched.told == [10, 14]


async def test_the_alarm_ends_when_four_of_five_of_the_last_fifty_are_read(watched: Watched) -> None:
    watched.note(UNREAD, 20)
    watched.note(READ, 39)  # of the last 50, 11 are unread
    assert [event.kind for event in events(watched)] == ["tool_calls_unreadable"]
    watched.note(READ, 1)
    assert [event.kind for event in events(watched)] == ["tool_calls_unreadable", "tool_calls_readable"]
    assert events(watched)[-1].data["share"] == 0.2


async def test_answers_through_the_gateway_are_counted_and_stored_with_what_was_wrong(desk: ClientDesk) -> None:
    told: list[tuple[int, int]] = []
    desk.gateway._watch._tell = lambda num_read, num_unread: told.append((num_read, num_unread))
    desk.say(call_text("read_file", path="a.py"), "<tool_call>{", "hello")
    for _ in range(3):
        await desk.answer([USER], tools=[READ_FILE])
    assert told == [(1, 0), (0, 1)]


async def test_an_unread_call_is_kept_with_its_turn(desk: ClientDesk) -> None:
    desk.say("<tool_call>{")
    await desk.answer([USER], "task", tools=[READ_FILE])
    with desk.world.db.reading() as tx:
        [turn] = tx.episodes.turns(desk.client_episode("task").id)
    [call] = turn.tool_calls
    assert call.error is not None
    assert "not valid JSON" in call.error
