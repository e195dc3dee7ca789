"""The words of an answer to a tool call, in one place: models are trained on these very texts."""

from __future__ import annotations

from collections.abc import Iterable

from envs.types import Observation

OK = Observation("ok")


def error(message: str) -> Observation:
    return Observation(f"error: {message}", is_error=True)


def unknown_tool(tool: str, names: Iterable[str]) -> Observation:
    """``names``: the tools that do work, in their order."""
    return error(f"unknown tool {tool}; tools: {', '.join(names)}")


def bad_arguments(tool: str, argument_names: Iterable[str]) -> Observation:
    return error(f"{tool} needs {', '.join(argument_names) or 'no arguments'}")


def bad_argument_type(argument: str, type_name: str) -> Observation:
    return error(f"{argument} must be {type_name}")


def no_file(path: str, paths: Iterable[str]) -> Observation:
    return error(no_file_message(path, paths))


def no_file_message(path: str, paths: Iterable[str]) -> str:
    return f"no file {path}; files: {', '.join(sorted(paths))}"
