"""One server with adapters for all integration tests that name ``adapter_engine``."""

from tests.adapter_engine_fixtures import adapter_engine

__all__ = ["adapter_engine"]
