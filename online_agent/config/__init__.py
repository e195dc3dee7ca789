"""Frozen settings, read from TOML and ONLINE_AGENT_* environment variables."""

from online_agent.config.settings import Settings, load_settings

__all__ = ["Settings", "load_settings"]
