"""Names that demonstrations use: the product's own, and others so that a policy reads the list it is shown."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from envs.types import ToolSpec

TOOL_NAMES: Mapping[str, tuple[str, ...]] = {
    "list_files": ("list_files", "show_files", "find_files", "ls"),
    "read_file": ("read_file", "open_file", "view_file", "cat", "show_file"),
    "edit_file": ("edit_file", "patch_file", "replace_text", "change_file", "modify", "update_file"),
    "run_tests": ("run_tests", "check", "execute_tests", "run_checks"),
    "submit": ("submit", "finish", "done", "complete"),
}
ARGUMENT_NAMES: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file", "filename", "target"),
    "old": ("old", "before", "find", "search"),
    "new": ("new", "after", "replacement", "put"),
}


@dataclass(frozen=True, slots=True)
class Naming:
    """What each tool and argument is called in one demonstration: own name → name shown."""

    tools: Mapping[str, str]
    arguments: Mapping[str, str]

    def specs(self, base: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        return tuple(self._spec(spec) for spec in base)

    def _spec(self, spec: ToolSpec) -> ToolSpec:
        properties = {self.arguments[name]: schema for name, schema in spec.parameters["properties"].items()}
        return ToolSpec(self.tools[spec.name], spec.description, {"type": "object", "properties": properties})


OWN_NAMES = Naming({name: name for name in TOOL_NAMES}, {name: name for name in ARGUMENT_NAMES})


def draw_naming(rng: random.Random) -> Naming:
    return Naming(
        {name: rng.choice(pool) for name, pool in TOOL_NAMES.items()},
        {name: rng.choice(pool) for name, pool in ARGUMENT_NAMES.items()},
    )


def rename_tool(naming: Naming, tool: str, rng: random.Random) -> Naming:
    """The same names but for ``tool``, which gets another of its pool."""
    others = [name for name in TOOL_NAMES[tool] if name != naming.tools[tool]]
    return Naming({**naming.tools, tool: rng.choice(others)}, naming.arguments)
