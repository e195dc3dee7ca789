"""The agent's files as the host sees them: in memory, so that no path of the agent ever names a file of the host.

A program of the agent may leave symbolic links behind. They are kept as words: one that stays inside the workspace is
followed here, by name; one that leads outside, dangling or not, is refused for reading and writing alike. What is
looked up and what is read are the same dictionary, so nothing can be swapped in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from envs.errors import WorkspaceRefused
from envs.observations import no_file_message
from envs.types import SandboxResult

MAX_FILES = 512
MAX_FILE_BYTES = 262_144
MAX_TOTAL_BYTES = 4_194_304
MAX_PATH_CHARS = 512
MAX_LINKS_FOLLOWED = 40


class Workspace:
    """Text files by relative path. Every refusal is a WorkspaceRefused that says what is wrong in the agent's terms."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._unreadable: set[str] = set()
        self._num_bytes = 0
        for path, text in files.items():
            self.write(path, text)

    def paths(self) -> list[str]:
        """Files and links, sorted."""
        return sorted({*self._files, *self._links, *self._unreadable})

    def snapshot(self) -> dict[str, str]:
        """The text files, without links."""
        return dict(self._files)

    def read(self, path: str) -> str:
        place = self._resolve(path)
        if place in self._files:
            return self._files[place]
        if place in self._unreadable:
            raise WorkspaceRefused(f"{path} is not text or too large to show")
        if self._is_directory(place):
            raise WorkspaceRefused(f"{path} is a directory")
        raise WorkspaceRefused(no_file_message(path, self.paths()))

    def write(self, path: str, text: str) -> None:
        """Create or overwrite a file."""
        place = self._resolve(path)
        if self._is_directory(place):
            raise WorkspaceRefused(f"{path} is a directory")
        parents = place.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            if "/".join(parents[:depth]) in self._files:
                raise WorkspaceRefused(f"{'/'.join(parents[:depth])} is a file, not a directory")
        size = _size(path, text)
        if place not in self._files and len(self._files) >= MAX_FILES:
            raise WorkspaceRefused(f"more than {MAX_FILES} files")
        total = self._num_bytes + size - len(self._files.get(place, "").encode())
        if total > MAX_TOTAL_BYTES:
            raise WorkspaceRefused(f"the files would be larger than {MAX_TOTAL_BYTES} bytes together")
        self._files[place] = text
        self._unreadable.discard(place)
        self._num_bytes = total

    def replace(self, path: str, old: str, new: str) -> None:
        """Put ``new`` in the place of the first ``old``. An empty ``old`` is found nowhere."""
        text = self.read(path)
        if not old or old not in text:
            raise WorkspaceRefused("text not found")
        self.write(path, text.replace(old, new, 1))

    def apply(self, result: SandboxResult) -> None:
        """Take over what a job left behind, as a whole. A job that was cut short changes nothing.

        What does not fit the limits is kept by name and cannot be read.
        """
        if result.files is None:
            return
        fresh = Workspace({})
        fresh._links = {path: target for path, target in result.links.items() if _is_plain(path)}
        fresh._unreadable = {path for path in result.skipped_files if _is_plain(path)}
        for path, text in sorted(result.files.items()):
            try:
                fresh.write(path, text)
            except WorkspaceRefused:
                fresh._unreadable.add(path)
        self._files, self._links = fresh._files, fresh._links
        self._unreadable, self._num_bytes = fresh._unreadable, fresh._num_bytes

    def _resolve(self, path: str) -> str:
        """The place a path names, links followed. Raises WorkspaceRefused where that is no place inside."""
        pending = _components(path)
        place: list[str] = []
        num_followed = 0
        while pending:
            part = pending.pop(0)
            if part == "..":
                if not place:
                    raise WorkspaceRefused(f"{path} leads out of the workspace")
                place.pop()
                continue
            here = "/".join([*place, part])
            target = self._links.get(here)
            if target is None:
                place.append(part)
                continue
            num_followed += 1
            if num_followed > MAX_LINKS_FOLLOWED:
                raise WorkspaceRefused(f"{path} is a loop of links")
            if target.startswith("/"):
                raise WorkspaceRefused(f"{path} leads out of the workspace (link to {target})")
            pending = [*(step for step in target.split("/") if step not in ("", ".")), *pending]
        if not place:
            raise WorkspaceRefused(f"{path} is a directory")
        return "/".join(place)

    def _is_directory(self, place: str) -> bool:
        return any(known.startswith(place + "/") for known in (*self._files, *self._links, *self._unreadable))


def _components(path: str) -> list[str]:
    """The parts of a path an agent may name. Raises WorkspaceRefused for absolute, climbing or unusable ones."""
    if not path:
        raise WorkspaceRefused("the path is empty")
    if len(path) > MAX_PATH_CHARS or not path.isprintable():
        raise WorkspaceRefused("the path is too long or has unprintable characters")
    if path.startswith(("/", "~")):
        raise WorkspaceRefused(f"{path} is outside the workspace; paths are relative to it")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise WorkspaceRefused(f"{path} is outside the workspace; paths may not contain ..")
    return parts


def _is_plain(path: str) -> bool:
    try:
        return _components(path) == path.split("/")
    except WorkspaceRefused:
        return False


def _size(path: str, text: str) -> int:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise WorkspaceRefused(f"the text for {path} is not valid Unicode") from None
    if size > MAX_FILE_BYTES:
        raise WorkspaceRefused(f"{path} would be larger than {MAX_FILE_BYTES} bytes")
    return size
