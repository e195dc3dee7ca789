"""The settings of a process: ``ONLINE_AGENT_CONFIG`` names the TOML file, ``ONLINE_AGENT_*`` override it."""

from __future__ import annotations

import os
from pathlib import Path

from online_agent.config.settings import Settings, load_settings


def settings_of_environment() -> Settings:
    """Raises ConfigError naming each bad key and value."""
    file = os.environ.get("ONLINE_AGENT_CONFIG")
    return load_settings(Path(file) if file else None)
