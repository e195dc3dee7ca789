"""Rows → the bytes of a Parquet file, a group of rows at a time, so that memory does not grow with the file.

Free JSON (metadata, arguments of calls) is a column of JSON text: its fields differ from row to row. pyarrow is needed
for this format only: the extra ``export``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import orjson

from online_agent.errors import BadInput
from online_agent.transfer.formats import Shape
from online_agent.transfer.native import Row

COMPRESSION = "zstd"


class ParquetStream:
    """``add`` and ``end`` return the bytes that are ready. Raises BadInput where pyarrow is not installed."""

    def __init__(self, shape: Shape) -> None:
        self._arrow, parquet = _pyarrow()
        self._shape = shape
        self._schema = _schema(self._arrow, shape)
        self._sink = _Sink()
        file = self._arrow.PythonFile(self._sink, mode="w")
        self._writer = parquet.ParquetWriter(file, self._schema, compression=COMPRESSION)

    def add(self, rows: list[Row]) -> bytes:
        """The rows are one row group."""
        if rows:
            named = [_with_json_text(row) for row in rows] if self._shape is Shape.NATIVE else rows
            self._writer.write_table(self._arrow.Table.from_pylist(named, schema=self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """What pyarrow writes to; it keeps bytes until they are taken."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: Any) -> int:
        self._chunks.append(bytes(data))
        return len(self._chunks[-1])

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(
            "format: parquet needs pyarrow on the server (pip install 'online-agent[export]'); jsonl does not",
            param="format",
        ) from error
    return pyarrow, pyarrow.parquet


def _with_json_text(row: Row) -> Row:
    turns = [
        {**turn, "tool_calls": [{**call, "arguments": _text(call["arguments"])} for call in turn["tool_calls"]]}
        for turn in row["turns"]
    ]
    return {**row, "metadata": _text(row["metadata"]), "turns": turns}


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _schema(pa: Any, shape: Shape) -> Any:
    text, ids, floats, bits = pa.string(), pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.int8())
    if shape is Shape.TRL:
        columns: dict[str, Any] = {
            **dict.fromkeys(("id", "task", "prompt", "completion"), text),
            "reward": pa.float64(),
            "prompt_ids": ids,
            "completion_ids": ids,
            "completion_mask": bits,
            "logprobs": floats,
        }
    elif shape is Shape.VERL:
        extra = {"index": text, "split": text, "task_id": text, "reward": pa.float64()}
        columns = {
            "data_source": text,
            "prompt": pa.list_(_struct(pa, {"role": text, "content": text})),
            "ability": text,
            "reward_model": _struct(pa, {"style": text, "ground_truth": text}),
            "extra_info": _struct(pa, extra),
            "prompts": ids,
            "responses": ids,
            "response_mask": bits,
            "rollout_log_probs": floats,
        }
    else:
        columns = _native_columns(pa)
    return pa.schema(list(columns.items()))


def _native_columns(pa: Any) -> dict[str, Any]:
    text, flag = pa.string(), pa.bool_()
    span = {
        "kind": text,
        "token_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "version_runs": pa.list_(pa.list_(pa.int32())),
    }
    turn = {
        "text": text,
        "tool_calls": pa.list_(_struct(pa, {"name": text, "arguments": text, "error": text})),
        "observations": pa.list_(_struct(pa, {"text": text, "is_error": flag, "is_final": flag})),
        "finish_reason": text,
        "spans": pa.list_(_struct(pa, span)),
    }
    sampling = {"temperature": pa.float64(), "top_p": pa.float64(), "max_new_tokens": pa.int32()}
    return {
        **dict.fromkeys(("id", "env", "task_id", "split"), text),
        "sampling": _struct(pa, sampling),
        "stop_reason": text,
        "reward": pa.float64(),
        "is_success": flag,
        "untrainable_reason": text,
        "metadata": text,
        "turns": pa.list_(_struct(pa, turn)),
    }


def _struct(pa: Any, fields: dict[str, Any]) -> Any:
    return pa.struct(list(fields.items()))
