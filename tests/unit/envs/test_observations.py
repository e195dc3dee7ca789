"""The exact words that models are trained on."""

from __future__ import annotations

from envs import observations
from envs.types import Observation


def test_success_and_errors_read_as_agreed() -> None:
    assert Observation("ok") == observations.OK
    said = [
        observations.unknown_tool("edit_file", ["read_file", "patch_file", "run_tests", "submit"]),
        observations.bad_arguments("edit_file", ["path", "old", "new"]),
        observations.bad_arguments("submit", []),
        observations.bad_argument_type("path", "text"),
        observations.no_file("src/x.py", ["lib/x.py", "a.py"]),
    ]
    assert [each.text for each in said] == [
        "error: unknown tool edit_file; tools: read_file, patch_file, run_tests, submit",
        "error: edit_file needs path, old, new",
        "error: submit needs no arguments",
        "error: path must be text",
        "error: no file src/x.py; files: a.py, lib/x.py",
    ]
    assert all(each.is_error and not each.is_final for each in said)
