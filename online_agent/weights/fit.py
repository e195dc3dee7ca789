"""May this version be loaded over what is served? Asked before the engine sees the directory, because SGLang accepts
missing or misshapen tensors and a truncated file kills it."""

from __future__ import annotations

from collections.abc import Mapping

from online_agent.errors import ForeignVersion
from online_agent.weights.adapter import Base, adapted_weights, base_serving_dir, check_belongs, read_probe, read_rank
from online_agent.weights.manifest import Manifest
from online_agent.weights.tensors import TensorSpec, check_finite, read_headers
from online_agent.weights.version_dir import VersionDir

HEAD = "lm_head.weight"


def check_fits(version_dir: VersionDir, served: Manifest) -> None:
    """Returns when every served tensor is there with its shape and dtype, and every value is finite.

    Raises ForeignVersion naming the first tensor that differs, CorruptVersion for unreadable or non-finite files.
    A tied model's head may be absent or present on either side: it is the embedding. An adapter fits when its base is
    what the engine holds and each of its pairs adapts a weight of that base; whole weights fit in an adapter's place
    when they are its base's.
    """
    ours = version_dir.manifest
    if (ours.architecture, ours.is_tied) != (served.architecture, served.is_tied):
        raise ForeignVersion(
            f"version {ours.version} is {_describe(ours)}, but {_describe(served)} is served (version {served.version})"
        )
    tensors = read_headers(version_dir.serving_dir)
    if ours.base is not None:
        check_belongs(ours.version, ours.base, served.base or Base(served.version, served.content_hash))
        _check_adapter(version_dir, tensors)
    elif served.base is not None:
        check_belongs(ours.version, Base(ours.version, ours.content_hash), served.base)
    else:
        _check_tensors(ours.version, tensors, served.tensors, is_tied=served.is_tied)
    for file in sorted(version_dir.serving_dir.glob("*.safetensors")):
        check_finite(file)


def _check_adapter(version_dir: VersionDir, tensors: Mapping[str, TensorSpec]) -> None:
    """Every pair is A (rank, in) and B (out, rank) in float32 for a weight (out, in) of the base."""
    version, serving_dir = version_dir.manifest.version, version_dir.serving_dir
    read_probe(serving_dir)
    rank, base = read_rank(serving_dir), read_headers(base_serving_dir(serving_dir))
    for weight, factors in adapted_weights(tensors).items():
        if weight not in base:
            raise ForeignVersion(f"version {version} adapts {weight}, which its base does not have")
        out_features, in_features = base[weight].shape
        for part, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
            name = factors[part]
            if tensors[name] != TensorSpec(shape, "F32"):
                raise ForeignVersion(f"version {version}: {name} is {_spec(tensors[name])}, wanted F32 {list(shape)}")


def _check_tensors(
    version: int, ours: Mapping[str, TensorSpec], served: Mapping[str, TensorSpec], *, is_tied: bool
) -> None:
    if not ours.keys() & served.keys():
        raise ForeignVersion(f"version {version}: none of its {len(ours)} tensors is known to the served model")
    optional = {HEAD} if is_tied else set()
    for name in sorted(served):
        if name not in ours:
            if name in optional:
                continue
            raise ForeignVersion(f"version {version} has no tensor {name}")
        if ours[name] != served[name]:
            raise ForeignVersion(
                f"version {version}: {name} is {_spec(ours[name])}, but {_spec(served[name])} is served"
            )
    for name in sorted(ours.keys() - served.keys() - optional):
        raise ForeignVersion(f"version {version} has a tensor {name} that the served model does not know")


def _describe(manifest: Manifest) -> str:
    return f"{manifest.architecture} ({'tied' if manifest.is_tied else 'own'} head)"


def _spec(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
