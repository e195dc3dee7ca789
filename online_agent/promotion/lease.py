"""One swapper at a time: whoever points the engine at other weights holds the lease ``engine`` in the database."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from online_agent.errors import Busy
from online_agent.store.session import Database

ENGINE_LEASE = "engine"
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class SwapLimits:
    """``swap_timeout_s`` bounds one pause of the engine; a killed swapper's lease blocks others for ``lease_s``.

    The lease must outlast a swap and the restoring after it (at most twice the timeout). A version of the learner is
    loaded once it is ``every_versions`` above the one that serves; a rollback at once.
    """

    swap_timeout_s: float = 30.0
    lease_s: float = 120.0
    every_versions: int = 1


@asynccontextmanager
async def engine_lease(db: Database, lease_s: float, *, wait_s: float = 0.0) -> AsyncIterator[None]:
    """Held inside the block. Raises Busy when another swapper still holds it after ``wait_s``."""
    owner = f"{os.getpid()}-{secrets.token_hex(6)}"
    deadline = time.monotonic() + wait_s
    while not await asyncio.to_thread(_acquire, db, owner, lease_s):
        if time.monotonic() >= deadline:
            raise Busy("another swap is under way", retry_after_s=1.0)
        await asyncio.sleep(_RETRY_S)
    try:
        yield
    finally:
        await asyncio.to_thread(_release, db, owner)


def _acquire(db: Database, owner: str, lease_s: float) -> bool:
    with db.transaction() as tx:
        return tx.leases.acquire(ENGINE_LEASE, owner, lease_s)


def _release(db: Database, owner: str) -> None:
    with db.transaction() as tx:
        tx.leases.release(ENGINE_LEASE, owner)
