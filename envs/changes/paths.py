"""Files lie elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, field_validator

from envs.changes.base import Call, Layer, Tools
from envs.errors import BadChange
from envs.observations import no_file
from envs.types import Observation

PATH_ARGUMENT = "path"


class MovePath(Layer):
    """The file or folder ``from`` is now ``to``; the old place is empty.

    The environment itself keeps its layout, so its tests and the artifact are as they were: paths are translated in
    the argument ``path`` on the way in and in the answers on the way out. It stands next to the environment whatever
    its place in the stack, because only there is ``path`` sure to be the name; translating paths and changing names
    do not interfere. A file of the task that lies at ``to`` already is hidden.
    """

    kind: ClassVar[str] = "move_path"
    is_innermost: ClassVar[bool] = True
    source: str = Field(alias="from", max_length=200)
    to: str = Field(max_length=200)

    @field_validator("source", "to")
    @classmethod
    def _is_relative(cls, path: str) -> str:
        parts = path.strip("/").split("/")
        if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{path!r} is no path inside the workspace")
        return "/".join(parts)

    def check(self, tools: Tools) -> None:
        if self.source == self.to or _is_under(self.to, self.source) or _is_under(self.source, self.to):
            raise BadChange(f"{self.source!r} and {self.to!r} lie in each other")
        if not any(PATH_ARGUMENT in tool.argument_names for tool in tools):
            raise BadChange(f"no tool has an argument {PATH_ARGUMENT!r}")

    def prompt(self, text: str) -> str:
        return re.sub(rf"(?<![\w/.-]){re.escape(self.source)}(?=/|$|[\s:,;])", self.to, text)

    def layout(self, files: Mapping[str, str]) -> Mapping[str, str]:
        return {self.moved(path): text for path, text in files.items()}

    def call(self, call: Call) -> Call | Observation:
        path = call.arguments.get(PATH_ARGUMENT)
        if not isinstance(path, str):
            return call
        plain = path.removeprefix("./")
        if _is_under(plain, self.source):
            return no_file(path, self.layout(call.files()))
        inner = self.source + plain[len(self.to) :] if _is_under(plain, self.to) else path
        return replace(call, arguments={**call.arguments, PATH_ARGUMENT: inner})

    def answer(self, call: Call, answer: Observation) -> Observation:
        """Paths of files in the answer, translated; the text of a file is shown as it is."""
        files = call.files()
        if answer.text in files.values():
            return answer
        return replace(answer, text=_replace_paths(answer.text, {path: self.moved(path) for path in files}))

    def moved(self, path: str) -> str:
        return self.to + path[len(self.source) :] if _is_under(path, self.source) else path


def _is_under(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def _replace_paths(text: str, moves: Mapping[str, str]) -> str:
    def moved(found: re.Match[str]) -> str:
        return moves[found.group()]

    known = [re.escape(path) for path, to in sorted(moves.items(), reverse=True) if path != to]
    return re.sub(rf"(?<![\w/.-])(?:{'|'.join(known)})(?![\w/-])", moved, text) if known else text
