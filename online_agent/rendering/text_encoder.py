"""Text → token ids with control tokens active (our own template text) or inert (everyone else's text)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

from online_agent.errors import ConfigError
from online_agent.rendering.decoding import TextStream, byte_of_character, without_nul
from online_agent.types import Int32Array

_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
"""How vocabularies that fall back to bytes write one."""


class TextEncoder:
    """Two views of one tokenizer.

    ``encode_template`` turns ``<|im_end|>`` into its control token. ``encode_plain`` knows no added token (special
    or not, whitespace runs excepted), so that a marker inside a file or a log stays ordinary text.
    """

    def __init__(self, tokenizer_file: Path) -> None:
        try:
            description = orjson.loads(tokenizer_file.read_bytes())
            self._full = Tokenizer.from_str(orjson.dumps(description).decode())
            added = description.get("added_tokens") or []
            self._plain = Tokenizer.from_str(orjson.dumps(_without_control_tokens(description)).decode())
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise ConfigError(f"cannot read the tokenizer {tokenizer_file}: {error}") from error
        for tokenizer in (self._full, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.control_ids = frozenset(int(token["id"]) for token in added if not _is_inert(token))
        self.control_texts = tuple(str(token["content"]) for token in added if not _is_inert(token))
        self._added = {int(token["id"]): str(token["content"]) for token in added}
        self._byte_of = byte_of_character() if _is_byte_level(description.get("decoder")) else None
        for text in self.control_texts:
            if self.control_ids.intersection(self.encode_plain(text).tolist()):
                raise ConfigError(f"{tokenizer_file}: {text!r} cannot be told from plain text in this tokenizer")

    def encode_template(self, text: str) -> Int32Array:
        return np.asarray(self._full.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_plain(self, text: str) -> Int32Array:
        return np.asarray(self._plain.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, control tokens included; NUL is replaced."""
        return without_nul(self._full.decode(token_ids, skip_special_tokens=False))

    def text_stream(self) -> TextStream:
        """Decodes ids one by one, control tokens included."""
        return TextStream(self._full)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for, which need not be whole characters."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._full.id_to_token(token_id) or ""
        if self._byte_of is not None:
            return bytes(self._byte_of[character] for character in piece if character in self._byte_of)
        if _BYTE_PIECE.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def token_id(self, text: str) -> int | None:
        token_id = self._full.token_to_id(text)
        return None if token_id is None else int(token_id)

    def has_control_text(self, text: str) -> bool:
        return any(control in text for control in self.control_texts)


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(part) for part in decoder.get("decoders", []))


def _is_inert(token: dict[str, Any]) -> bool:
    """Runs of white space kept as one token are ordinary text."""
    return not token["special"] and not str(token["content"]).strip()


def _without_control_tokens(description: dict[str, Any]) -> dict[str, Any]:
    plain = dict(description)
    plain["added_tokens"] = [token for token in description.get("added_tokens") or [] if _is_inert(token)]
    plain["post_processor"] = None
    if plain["model"].get("ignore_merges"):
        # It would look whole words up in the vocabulary, control tokens included.
        plain["model"] = {**plain["model"], "ignore_merges": False}
    return plain
