"""Injected alterations of tools and API, as layers around any environment."""

from envs.changes.environment import ChangedEnvironment, ChangedSession, check_change
from envs.changes.kinds import CHANGE_KINDS, env_revision

__all__ = ["CHANGE_KINDS", "ChangedEnvironment", "ChangedSession", "check_change", "env_revision"]
