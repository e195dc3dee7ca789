"""What the doctor says of a port that is taken: by the service that runs here, or by somebody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from online_agent.cli.doctor import Level, check_port
from online_agent.config.settings import Settings
from online_agent.supervisor.lock import DataDirLock


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """The API's port is one that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield Settings.model_validate({"data_dir": tmp_path, "api": {"port": taken.getsockname()[1]}})


def test_a_port_that_somebody_else_has_is_missing(settings: Settings) -> None:
    found = check_port(settings)
    assert found.level is Level.MISSING
    assert "ONLINE_AGENT_API__PORT" in found.remedy


def test_a_port_that_is_taken_while_the_service_runs_here_is_no_fault(settings: Settings) -> None:
    with DataDirLock(settings.data_dir):
        assert check_port(settings).level is Level.OK
    assert check_port(settings).level is Level.MISSING
