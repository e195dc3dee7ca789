"""One generation made of the pieces it was sampled in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from online_agent.types import Generation, RoutedExperts, VersionRun


def join(first: Generation, second: Generation) -> Generation:
    """What ``second`` sampled behind the prompt and ids of ``first``, as if the engine had never stopped.

    Version runs stay exact. Each token keeps the experts it was sampled with: ``second`` was asked for those of the
    tokens behind the ones of ``first``.
    """
    return replace(
        second,
        token_ids=np.concatenate([first.token_ids, second.token_ids]),
        logprobs=np.concatenate([first.logprobs, second.logprobs]),
        version_runs=_joined_runs(first, second),
        num_prompt_tokens=first.num_prompt_tokens,
        num_cached_tokens=first.num_cached_tokens,
        num_retractions=first.num_retractions + second.num_retractions,
        misalignment=first.misalignment or second.misalignment,
        routed_experts=_joined_experts(first, second),
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def _joined_runs(first: Generation, second: Generation) -> tuple[VersionRun, ...]:
    offset = len(first.token_ids)
    later = [VersionRun(run.version, run.start + offset, run.end + offset) for run in second.version_runs]
    runs = list(first.version_runs)
    if runs and later and runs[-1].version == later[0].version and runs[-1].end == later[0].start:
        later[0] = VersionRun(later[0].version, runs.pop().start, later[0].end)
    return (*runs, *later)


def _joined_experts(first: Generation, second: Generation) -> RoutedExperts | None:
    if first.routed_experts is None:
        return None if len(first.token_ids) else second.routed_experts
    if second.routed_experts is None:
        return None
    return np.concatenate([first.routed_experts, second.routed_experts])
