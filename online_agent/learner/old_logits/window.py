"""The weights of the staleness window, in memory as far as a setting allows, on disk otherwise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor

from online_agent.learner.old_logits.scoring import read_weights
from online_agent.weights.store import WeightStore


class VersionWindow:
    """When the held versions exceed ``max_bytes`` the least recently used go first; the one in use stays."""

    def __init__(self, weights: WeightStore, max_bytes: int) -> None:
        self._weights, self._max_bytes = weights, max_bytes
        self._held: OrderedDict[int, Mapping[str, Tensor]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self._held.values()))

    @property
    def versions(self) -> list[int]:
        """Those in memory, least recently used first."""
        return list(self._held)

    def weights_of(self, version: int) -> Mapping[str, Tensor]:
        """The tensors of ``version``. Raises CorruptVersion when it is gone from the disk too or does not verify."""
        held = self._held.get(version)
        if held is None:
            held = self._held[version] = read_weights(self._weights.open(version).serving_dir)
        self._held.move_to_end(version)
        while len(self._held) > 1 and self.size_bytes > self._max_bytes:
            self._held.popitem(last=False)
        return held

    def forget_below(self, version: int) -> None:
        """No version under ``version`` is held any more."""
        for old in [held for held in self._held if held < version]:
            del self._held[old]


def _size_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
