"""Benchmarks of whole runs: one service a run, real traffic, one engine for all of them."""
