"""Ids → text as they are sampled. A character that is split over several tokens comes when it is whole."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

NUL, NUL_REPLACEMENT = "\x00", "\ufffd"
"""A model may sample NUL. No database column takes it, nor does a request body that hands the answer back."""


def without_nul(text: str) -> str:
    """The text, of the same length, as it may be stored, sent and handed back."""
    return text.replace(NUL, NUL_REPLACEMENT)


class TextStream:
    """``push`` each id, then ``finish`` once: the parts joined are the text of all ids, ``without_nul``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._num_chars = 0

    def push(self, token_id: int) -> str:
        """What the id completes; empty while a character is not whole."""
        self._ids.append(token_id)
        text = without_nul(self._stream.step(self._tokenizer, token_id) or "")
        self._num_chars += len(text)
        return text

    def push_all(self, token_ids: Sequence[int]) -> str:
        """The text of the only ids there are: as if each was pushed, then ``finish``, in a tenth of the time."""
        assert not self._ids, "ids were pushed before"
        self._ids = list(token_ids)
        text = without_nul(self._tokenizer.decode(self._ids, skip_special_tokens=False))
        self._num_chars = len(text)
        return text

    def finish(self) -> str:
        """What is left: the replacement of a character that never became whole."""
        whole = without_nul(self._tokenizer.decode(self._ids, skip_special_tokens=False))
        return whole[self._num_chars :]


def byte_of_character() -> dict[str, int]:
    """GPT-2's map of bytes to printable characters, inverted: how byte-level vocabularies are written."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
