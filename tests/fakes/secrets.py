"""Secrets of every known form, made up; and where a database may keep them: as text, or as the ids that spell it."""

from __future__ import annotations

import json
from pathlib import Path

from online_agent.rendering import ChatRenderer
from online_agent.store.encoding import unpack_spans
from online_agent.store.session import Database

KEY_BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAzq7\n4f+Qd0x=\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "api_key": "sk-proj-4f9QmZ2x8Lr7Tn5VwYb1",
    "aws_key": "AKIAQ3EGTR7XW5LMNP2Z",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0NzExIn0.dBjftJeZ4CVPmB92K27u",
    "private_key": KEY_BLOCK,
    "bearer_token": "Bearer 9f8e7d6c5b4a39281706f5e4",
    "url_password": "postgres://app:hunter2hunter@db/shop",
}
PARTS = {**SECRETS, "private_key": "MIIEowIBAAKCAQEAzq7", "bearer_token": "9f8e7d6c5b4a", "url_password": "hunter2"}
"""What must not be left of each."""


def kept_in(db: Database, path: Path, renderer: ChatRenderer) -> set[str]:
    """The names of the secrets that a reader of the file finds, or of the text that its token ids spell."""
    with db.reading() as tx:
        rows = tx.connection.exec_driver_sql(
            "SELECT span_index, token_ids, logprobs FROM turns"
            " UNION ALL SELECT span_index, token_ids, logprobs FROM discarded_generations"
        ).all()
    text = "\n".join(
        renderer.decode([token for span in unpack_spans(_index(row[0]), row[1], row[2]) for token in span.token_ids])
        for row in rows
    )
    files = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    return {name for name, part in PARTS.items() if part in text or part.encode() in files}


def _index(column: str) -> list[list[object]]:
    index: list[list[object]] = json.loads(column)
    return index
