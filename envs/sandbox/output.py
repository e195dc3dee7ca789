"""The output of a job, as text."""

from __future__ import annotations

import codecs


class Output:
    """The first ``max_bytes`` of the output, decoded as one stream: bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._max_bytes = max_bytes
        self.size = 0

    @property
    def is_truncated(self) -> bool:
        return self.size > self._max_bytes

    def add(self, data: bytes) -> None:
        kept = data[: max(0, self._max_bytes - self.size)]
        self.size += len(data)
        self._parts.append(self._decoder.decode(kept))

    def text(self) -> str:
        return "".join(self._parts) + self._decoder.decode(b"", final=True)
