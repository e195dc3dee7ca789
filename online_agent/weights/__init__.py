"""What a weight version is on disk."""

from online_agent.weights.fit import check_fits
from online_agent.weights.manifest import Manifest
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir

__all__ = ["Manifest", "VersionDir", "WeightStore", "check_fits"]
