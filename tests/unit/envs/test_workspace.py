"""The agent's files on the host: what can be read and written, and what is refused with which words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import WorkspaceRefused
from envs.sandbox.nsjail import NsjailSandbox
from envs.types import SandboxResult
from envs.workspace import MAX_FILE_BYTES, MAX_FILES, Workspace


def left_behind(files: dict[str, str], links: dict[str, str] | None = None, *skipped: str) -> SandboxResult:
    return SandboxResult("", 0, files=files, links=links or {}, skipped_files=skipped)


def refusal(act: object, *arguments: str) -> str:
    assert callable(act)
    with pytest.raises(WorkspaceRefused) as refused:
        act(*arguments)
    return str(refused.value)


def test_what_was_written_is_read_and_listed() -> None:
    workspace = Workspace({"b.txt": "b", "a/c.txt": "c"})
    workspace.write("./a//new.txt", "grüße")
    assert workspace.paths() == ["a/c.txt", "a/new.txt", "b.txt"]
    assert workspace.read("a/./new.txt") == "grüße"
    assert workspace.snapshot() == {"b.txt": "b", "a/c.txt": "c", "a/new.txt": "grüße"}


def test_replace_changes_the_first_occurrence_alone() -> None:
    workspace = Workspace({"a": "x + y + z"})
    workspace.replace("a", "+", "-")
    assert workspace.read("a") == "x - y + z"


@pytest.mark.parametrize("old", ["q", ""])
def test_text_that_is_not_there_is_not_replaced(old: str) -> None:
    workspace = Workspace({"a": "x"})
    assert refusal(workspace.replace, "a", old, "new") == "text not found"
    assert workspace.read("a") == "x"


def test_missing_file_is_answered_with_the_files_there_are() -> None:
    assert refusal(Workspace({"lib/x.py": ""}).read, "src/x.py") == "no file src/x.py; files: lib/x.py"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "outside the workspace"),
        ("~/x", "outside the workspace"),
        ("../ep10/x", "may not contain .."),
        ("a/../../x", "may not contain .."),
        ("", "the path is empty"),
        ("a\0b", "unprintable"),
        ("a\nb", "unprintable"),
        ("x" * 600, "too long"),
        (".", "is a directory"),
        ("a", "is a directory"),
        ("a/b/c", "a/b is a file, not a directory"),
    ],
)
def test_unusable_path_is_refused_for_writing(path: str, words: str) -> None:
    workspace = Workspace({"a/b": "kept"})
    assert words in refusal(workspace.write, path, "new")
    assert workspace.snapshot() == {"a/b": "kept"}


def test_limits_on_size_and_number_of_files() -> None:
    workspace = Workspace({"a": "x" * MAX_FILE_BYTES})
    assert "larger than 262144 bytes" in refusal(workspace.write, "a", "x" * (MAX_FILE_BYTES + 1))
    assert "larger than 262144 bytes" in refusal(workspace.write, "a", "é" * (MAX_FILE_BYTES // 2 + 1))
    for n in range(15):
        workspace.write(f"large{n}", "x" * MAX_FILE_BYTES)
    assert "4194304 bytes together" in refusal(workspace.write, "one-more", "x")
    workspace.write("large0", "")
    workspace.write("one-more", "x")
    many = Workspace({str(n): "" for n in range(MAX_FILES)})
    assert "more than 512 files" in refusal(many.write, "one-more", "")
    many.write("0", "but an old one may change")


def test_text_that_is_no_unicode_is_refused() -> None:
    assert "not valid Unicode" in refusal(Workspace({}).write, "a", "\ud800")


def test_what_a_job_left_behind_replaces_the_files_as_a_whole() -> None:
    workspace = Workspace({"gone": "", "kept": "old"})
    workspace.apply(left_behind({"kept": "new"}, None, "binary"))
    assert workspace.paths() == ["binary", "kept"]
    assert workspace.read("kept") == "new"
    assert refusal(workspace.read, "binary") == "binary is not text or too large to show"
    workspace.write("binary", "now text")
    assert workspace.read("binary") == "now text"


def test_job_that_was_cut_short_changes_nothing() -> None:
    workspace = Workspace({"kept": "old"})
    workspace.apply(SandboxResult("", 124, is_timeout=True))
    assert workspace.snapshot() == {"kept": "old"}


def test_more_than_fits_is_kept_by_name() -> None:
    workspace = Workspace({})
    workspace.apply(left_behind({f"{n:04}": "" for n in range(MAX_FILES + 1)}))
    assert len(workspace.paths()) == MAX_FILES + 1
    assert "not text or too large" in refusal(workspace.read, "0512")


@pytest.mark.parametrize(
    ("links", "path", "words"),
    [
        ({"a": "b", "b": "a"}, "a", "loop of links"),
        ({"a": "."}, "a", "is a directory"),
        ({"a": ".."}, "a/x", "leads out of the workspace"),
        ({"d/a": "../../x"}, "d/a", "leads out of the workspace"),
        ({"a": "b", "b": "/x"}, "a", "leads out of the workspace (link to /x)"),
        ({"a": "nothing"}, "a", "no file a"),
    ],
)
def test_link_that_leads_nowhere_good_is_refused(links: dict[str, str], path: str, words: str) -> None:
    workspace = Workspace({})
    workspace.apply(left_behind({}, links))
    assert words in refusal(workspace.read, path)


def test_link_inside_the_workspace_is_followed_also_through_folders() -> None:
    workspace = Workspace({})
    workspace.apply(left_behind({"d/a.txt": "a"}, {"ok": "./d/a.txt", "e": "d", "d/up": "../d/a.txt", "new": "d/new"}))
    assert [workspace.read(path) for path in ("ok", "e/a.txt", "d/up", "e/up")] == ["a"] * 4
    workspace.write("e/a.txt", "changed")
    workspace.write("new", "created")
    assert workspace.snapshot() == {"d/a.txt": "changed", "d/new": "created"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[NsjailSandbox]:
    box = NsjailSandbox(max_jobs=1, first_uid=27_001)
    yield box
    asyncio.run(box.close())


async def test_c29_link_out_of_the_workspace_is_refused_also_a_dangling_one(sandbox: NsjailSandbox) -> None:
    outside = Path("/tmp/out")
    was_there = outside.exists()
    workspace = Workspace({"a.txt": "inside"})
    line = "ln -s /tmp/out/new.txt link; ln -s / esc; ln -s ./a.txt ok"
    workspace.apply(await sandbox.run(["sh", "-c", line], workspace.snapshot(), timeout_s=10, collect_files=True))
    assert refusal(workspace.write, "link", "x") == "link leads out of the workspace (link to /tmp/out/new.txt)"
    assert refusal(workspace.read, "esc/etc/hostname") == "esc/etc/hostname leads out of the workspace (link to /)"
    assert "outside the workspace" in refusal(workspace.write, "../ep10/x", "x")
    assert workspace.read("ok") == "inside"
    assert outside.exists() == was_there
    assert workspace.snapshot() == {"a.txt": "inside"}


async def test_c29_folder_swapped_for_a_link_is_refused(sandbox: NsjailSandbox) -> None:
    workspace = Workspace({"d/a.txt": "inside"})
    workspace.write("d/a.txt", "checked before")
    line = "rm -r d; ln -s /etc d"
    workspace.apply(await sandbox.run(["sh", "-c", line], workspace.snapshot(), timeout_s=10, collect_files=True))
    assert "leads out of the workspace (link to /etc)" in refusal(workspace.write, "d/a.txt", "x")
    assert "leads out of the workspace (link to /etc)" in refusal(workspace.read, "d/hostname")


path_texts = st.text(alphabet="ab./~\0é", max_size=12)


@given(st.lists(st.tuples(path_texts, path_texts), max_size=6), st.lists(path_texts, min_size=1, max_size=6))
def test_no_path_and_no_link_ever_names_anything_but_a_file_inside(
    links: list[tuple[str, str]], paths: list[str]
) -> None:
    workspace = Workspace({})
    workspace.apply(left_behind({"a": "1"}, dict(links)))
    for path in paths:
        try:
            workspace.write(path, "new")
        except WorkspaceRefused:
            continue
        assert workspace.read(path) == "new"
    for place in workspace.snapshot():
        assert not place.startswith("/")
        assert not {"", ".", ".."} & set(place.split("/"))
