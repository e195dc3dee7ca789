"""Tasks given with a request: what every environment takes of them, and what it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from envs.errors import BadTask
from envs.given import MAX_FILES, MAX_FILES_BYTES, MAX_PROMPT_CHARS, GivenTask, parse_given

TASK: dict[str, Any] = {"prompt": "mend it", "files": {"src/a.py": "x = 1\n", "b.txt": ""}}


def given(**parts: Any) -> GivenTask:
    return parse_given(GivenTask, {**TASK, **parts})


def test_equal_tasks_have_one_id_and_any_difference_another():
    task = given()
    assert task.id == given(files={"b.txt": "", "src/a.py": "x = 1\n"}).id
    assert task.id.startswith("inline-")
    assert len(task.id) == len("inline-") + 16
    others = [given(prompt="mend it "), given(files={"src/a.py": "x = 1"}), given(files={"b.txt": ""})]
    assert len({task.id, *(other.id for other in others)}) == 4


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "outside the workspace"),
        ("../a.py", "may not contain .."),
        ("src/../../a.py", "may not contain .."),
        ("~/a.py", "outside the workspace"),
        ("", "the path is empty"),
        (".", "is a directory"),
        ("a\x00.py", "unprintable"),
        ("a\n.py", "unprintable"),
        ("./a.py", "not in its plain form"),
        ("src//a.py", "not in its plain form"),
        ("src/", "not in its plain form"),
        ("é" * 101, "more than 200 bytes"),
    ],
)
def test_a_path_that_is_no_plain_place_inside_is_refused_by_name(path, reason):
    with pytest.raises(BadTask, match=reason) as refused:
        given(files={"ok.py": "", path: "x"})
    assert refused.value.field == "files"
    assert repr(path)[:60] in str(refused.value)


@pytest.mark.parametrize("paths", [("a", "a/b.py"), ("a/b.py", "a")])
def test_a_file_cannot_be_a_folder_too(paths):
    with pytest.raises(BadTask, match="director"):
        given(files=dict.fromkeys(paths, ""))


def test_as_many_and_as_large_files_as_the_limits_allow_and_not_one_more():
    most = {f"{n}.py": "" for n in range(MAX_FILES)}
    assert len(given(files=most).files) == MAX_FILES
    with pytest.raises(BadTask, match=f"at most {MAX_FILES}") as refused:
        given(files={**most, "more.py": ""})
    assert refused.value.field == "files"
    half = "é" * (MAX_FILES_BYTES // 4)
    assert len(given(files={"a.py": half, "b.py": half}).files) == 2
    with pytest.raises(
        BadTask, match=f"{MAX_FILES_BYTES + 1} bytes together, the limit is {MAX_FILES_BYTES}"
    ) as refused:
        given(files={"a.py": half, "b.py": half, "c.py": "x"})
    assert refused.value.field == "files"
    with pytest.raises(BadTask, match=r"'a\.py' .*larger than"):
        given(files={"a.py": half + half + "x"})


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "x" * (MAX_PROMPT_CHARS + 1)}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"files": {}}, "files"),
        ({"files": [["a.py", ""]]}, "files"),
        ({"files": {"a.py": None}}, "files.a.py"),
        ({"grader": "trust me"}, "grader"),
        ({"g" * 5000: "long"}, "g" * 100),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_its_field(parts, field):
    with pytest.raises(BadTask) as refused:
        given(**parts)
    assert refused.value.field == field
    assert len(str(refused.value)) < 400


def test_a_part_that_is_missing_is_named():
    with pytest.raises(BadTask, match="Field required") as refused:
        parse_given(GivenTask, {"prompt": "mend it"})
    assert refused.value.field == "files"
