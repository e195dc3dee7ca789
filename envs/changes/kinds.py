"""The kinds of changes there are, by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from envs.changes.answers import ChangeErrorFormat, ChangeOutputFormat, CorruptOutput, Delay, InjectErrors
from envs.changes.arguments import AddRequiredArgument, ChangeSemantics, RenameArgument, RetypeArgument, SwapArguments
from envs.changes.base import Layer
from envs.changes.paths import MovePath
from envs.changes.tools import AddTool, DeprecateTool, RemoveTool, RenameTool
from envs.errors import BadChange
from envs.protocols import Environment
from envs.types import Change

_KINDS: tuple[type[Layer], ...] = (
    RenameTool,
    RenameArgument,
    SwapArguments,
    RetypeArgument,
    AddRequiredArgument,
    AddTool,
    RemoveTool,
    DeprecateTool,
    ChangeOutputFormat,
    ChangeErrorFormat,
    MovePath,
    ChangeSemantics,
    InjectErrors,
    Delay,
    CorruptOutput,
)
_BY_NAME = {kind.kind: kind for kind in _KINDS}

CHANGE_KINDS: dict[str, dict[str, Any]] = {name: kind.model_json_schema() for name, kind in _BY_NAME.items()}
"""Kind → JSON schema of its parameters."""


def layer_of(kind: str, params: Mapping[str, Any]) -> Layer:
    """Raises BadChange, naming the bad value, for an unknown kind or unusable parameters."""
    known = _BY_NAME.get(kind)
    if known is None:
        raise BadChange(f"no change kind {kind!r}; kinds: {', '.join(_BY_NAME)}")
    try:
        return known.model_validate(dict(params))
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()]
        raise BadChange(f"{kind}: {'; '.join(wrong)}") from error


def env_revision(env: Environment, changes: Sequence[Change]) -> str:
    """Twelve hex digits that name what the agent acts in: the environment, its version and the changes in force."""
    facts = [env.name, env.version, [[c.kind, dict(c.params), c.is_silent] for c in changes]]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
