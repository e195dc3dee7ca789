"""Measurements, each a module with ``measure() -> Report``; ``online-agent bench NAME`` runs one."""
