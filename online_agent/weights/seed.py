"""Which files of a Hugging Face directory become version 0."""

from __future__ import annotations

import json
from pathlib import Path

from online_agent.errors import WeightsError
from online_agent.weights.tensors import check_finite, read_headers

_KEPT_SUFFIXES = {".json", ".jinja", ".safetensors", ".txt", ".model"}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NEEDED = ("config.json", "tokenizer.json")
_INDEX = "model.safetensors.index.json"


def seed_files(model_dir: Path) -> list[Path]:
    """The files to serve. Raises WeightsError naming what is missing, CorruptVersion for unreadable tensors.

    Safetensors only: a pickle can run code when it is loaded.
    """
    if not model_dir.is_dir():
        raise WeightsError(f"{model_dir} is not a directory")
    for name in _NEEDED:
        if not (model_dir / name).is_file():
            raise WeightsError(f"{model_dir} has no {name}")
    if not any(model_dir.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in _PICKLES for path in model_dir.glob(pattern))
        if pickles:
            raise WeightsError(f"{model_dir} holds pickled weights ({pickles[0]}): convert them to safetensors first")
        raise WeightsError(f"{model_dir} has no safetensors file")
    for shard in sorted(_shards(model_dir)):
        if not (model_dir / shard).is_file():
            raise WeightsError(f"{model_dir} has no {shard}, which {_INDEX} names")
    read_headers(model_dir)
    files = [path for path in sorted(model_dir.iterdir()) if path.is_file() and path.suffix in _KEPT_SUFFIXES]
    for path in files:
        if path.suffix == ".safetensors":
            check_finite(path)
    return files


def _shards(model_dir: Path) -> set[str]:
    path = model_dir / _INDEX
    if not path.is_file():
        return set()
    try:
        names = set(json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} cannot be read: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise WeightsError(f"{path} names a file outside the directory: {name!r}")
    return names
