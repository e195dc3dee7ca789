"""Keys that opened are not read again for a moment; what closes one is obeyed at once where it was asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from api.keys.known import MAX_KEYS, KnownKeys
from online_agent.store.records import KeyRecord
from tests.database_fixtures import ManualClock

KEY = KeyRecord(
    id="key_1",
    tenant_id="default",
    name="ci",
    scopes=frozenset({"agent"}),
    created_at=0.0,
    revoked_at=None,
    expires_at=None,
    last_used_at=None,
    old_until=None,
    requests_per_minute=None,
    tokens_per_day=None,
)


class Store:
    """What ``look`` asks, counted."""

    def __init__(self, **keys: KeyRecord) -> None:
        self.keys: dict[str, KeyRecord] = keys
        self.num_looks = 0
        self.gate: asyncio.Event | None = None

    async def look(self, secret: str) -> KeyRecord | None:
        self.num_looks += 1
        found = self.keys.get(secret)
        if self.gate is not None:
            await self.gate.wait()
        return found


async def test_a_key_is_read_once_within_the_time_it_is_kept(clock: ManualClock) -> None:
    store = Store(a=KEY)
    known = KnownKeys(1.0, clock, store.look)
    assert [await known.find("a"), await known.find("a")] == [KEY, KEY]
    assert store.num_looks == 1
    clock.advance(1.0)
    del store.keys["a"]  # revoked by another process
    assert await known.find("a") is None
    assert store.num_looks == 2


async def test_what_opens_nothing_is_looked_up_each_time(clock: ManualClock) -> None:
    store = Store()
    known = KnownKeys(1.0, clock, store.look)
    assert await known.find("a") is None
    store.keys["a"] = KEY
    assert await known.find("a") == KEY


@pytest.mark.parametrize("end", ["expires_at", "old_until"])
async def test_a_key_is_read_again_when_it_expires_or_its_overlap_ends(clock: ManualClock, end: str) -> None:
    store = Store(a=replace(KEY, **{end: clock() + 0.5}))
    known = KnownKeys(1.0, clock, store.look)
    assert await known.find("a") is not None
    clock.advance(0.5)
    store.keys.clear()
    assert await known.find("a") is None


async def test_an_overlap_that_is_over_does_not_keep_a_key_from_being_kept(clock: ManualClock) -> None:
    store = Store(a=replace(KEY, old_until=clock() - 1))
    known = KnownKeys(1.0, clock, store.look)
    await known.find("a")
    await known.find("a")
    assert store.num_looks == 1


async def test_what_is_forgotten_is_looked_up_also_when_the_look_up_was_under_way(clock: ManualClock) -> None:
    store = Store(a=KEY)
    known = KnownKeys(60.0, clock, store.look)
    store.gate = asyncio.Event()
    under_way = asyncio.create_task(known.find("a"))
    await asyncio.sleep(0)
    del store.keys["a"]
    known.forget()
    store.gate.set()
    assert await under_way == KEY  # it was live when it was asked for
    assert await known.find("a") is None


async def test_a_clock_that_was_set_back_does_not_keep_a_key_for_longer(clock: ManualClock) -> None:
    store = Store(a=KEY)
    known = KnownKeys(1.0, clock, store.look)
    await known.find("a")
    clock.advance(-3600)
    await known.find("a")
    assert store.num_looks == 2


async def test_nothing_is_kept_for_no_time(clock: ManualClock) -> None:
    store = Store(a=KEY)
    known = KnownKeys(0.0, clock, store.look)
    await known.find("a")
    await known.find("a")
    assert store.num_looks == 2


async def test_the_number_of_kept_keys_is_bounded(clock: ManualClock) -> None:
    store = Store(**{f"k{number}": KEY for number in range(MAX_KEYS + 1)})
    known = KnownKeys(60.0, clock, store.look)
    for secret in store.keys:
        await known.find(secret)
    await known.find(f"k{MAX_KEYS}")
    assert store.num_looks == MAX_KEYS + 1
    await known.find("k0")  # made room
    assert store.num_looks == MAX_KEYS + 2
