"""A client of the application, whose engine is scripted, per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateway import ClientDesk, open_desk


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened
