"""Every recipe's advantages, loss and dL/dlogp written out in float64 NumPy, token by token, from the papers.

Shares nothing with ``online_agent.algo``. One array per episode; d is log pi - log of the reference at its actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlainEpisode:
    """``logp``, ``mu``, ``prox`` (A,) at the A actions; ``values`` (T,) before every token; ``mask`` (T,)."""

    logp: Floats
    mu: Floats
    prox: Floats
    values: Floats
    mask: npt.NDArray[np.bool_]
    reward: float
    group: int


def recursion(values: Sequence[float], rewards: Sequence[float], lam: float) -> list[float]:
    """GAE with gamma 1 from the end."""
    advantages, after, value_after = [0.0] * len(values), 0.0, 0.0
    for k in range(len(values) - 1, -1, -1):
        advantages[k] = after = rewards[k] + value_after - values[k] + lam * after
        value_after = values[k]
    return advantages


def at_the_end(num: int, reward: float) -> list[float]:
    return [0.0] * (num - 1) + [reward]


def skip_observations(e: PlainEpisode, lam: float) -> Floats:
    values = e.values[e.mask]
    return np.array(recursion(values.tolist(), at_the_end(len(values), e.reward), lam))


def through_observations(e: PlainEpisode, lam: float) -> Floats:
    actions = np.flatnonzero(e.mask)
    span = slice(actions[0], actions[-1] + 1)
    values = e.values[span]
    walked = np.array(recursion(values.tolist(), at_the_end(len(values), e.reward), lam))
    return walked[e.mask[span]]


def by_turns(e: PlainEpisode, lam: float) -> Floats:
    turns: list[list[float]] = []
    for t, is_action in enumerate(e.mask):
        if not is_action:
            continue
        if not turns or not e.mask[t - 1]:
            turns.append([])
        turns[-1].append(float(e.values[t]))
    means = [sum(turn) / len(turn) for turn in turns]
    per_turn = recursion(means, at_the_end(len(means), e.reward), lam)
    return np.repeat(per_turn, [len(turn) for turn in turns])


ESTIMATORS = {"sao-plain-gae": through_observations, "sao-step-mean": by_turns}
GROUPED = ("grpo", "grpo-dis", "gspo", "sat-grpo", "sat-gspo", "sat-gspo-r3")


def advantages(recipe: str, episodes: Sequence[PlainEpisode]) -> list[Floats]:
    if recipe == "running-mean":
        seen: list[float] = []
        each = []
        for e in episodes:
            last = seen[-128:]
            each.append(e.reward - (sum(last) / len(last) if last else 0.0))
            seen.append(e.reward)
        return [np.full(len(e.logp), a) for e, a in zip(episodes, each, strict=True)]
    if recipe in GROUPED:
        made = []
        for e in episodes:
            rewards = np.array([other.reward for other in episodes if other.group == e.group])
            std = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
            made.append(np.full(len(e.logp), (e.reward - rewards.mean()) / (std + 1e-6)))
        return made
    estimator = ESTIMATORS.get(recipe, skip_observations)
    return [estimator(e, max(0.0, 1 - 1 / (1.5 * len(e.logp)))) for e in episodes]


def targets(recipe: str, episodes: Sequence[PlainEpisode]) -> list[Floats]:
    """A with lambda 1, plus V: with gamma 1 and one terminal reward this is the reward, for every estimator."""
    return [np.full(len(e.logp), e.reward) for e in episodes]


def dis(recipe: str, episodes: Sequence[PlainEpisode], advs: Sequence[Floats]) -> tuple[float, list[Floats]]:
    num = sum(len(e.logp) for e in episodes)
    loss, gradient = 0.0, []
    for e, adv in zip(episodes, advs, strict=True):
        judged, weight = np.exp(e.logp - e.prox), np.exp(e.logp - e.mu)
        discrepancy = np.exp(e.prox - e.mu)
        kept = (judged > 0.2) & (judged < 4.0) & (discrepancy >= 0.5) & (discrepancy <= 2.0)
        gradient.append(np.where(kept, -weight * adv, 0.0) / num)
        loss += float((gradient[-1] * e.logp).sum())
    return loss, gradient


def clipped(r: Floats, adv: Floats, low: Floats | float, high: Floats | float) -> tuple[Floats, Floats]:
    """min(r A, clip(r) A) and its derivative by log r."""
    surrogate = np.minimum(r * adv, np.clip(r, low, high) * adv)
    is_flat = ((adv > 0) & (r > high)) | ((adv < 0) & (r < low))
    return surrogate, np.where(is_flat, 0.0, r * adv)


def ppo(
    episodes: Sequence[PlainEpisode], advs: Sequence[Floats], high: float, *, per_episode: bool = False
) -> tuple[float, list[Floats]]:
    num = sum(len(e.logp) for e in episodes)
    loss, gradient = 0.0, []
    for e, adv in zip(episodes, advs, strict=True):
        surrogate, slope = clipped(np.exp(e.logp - e.prox), adv, 0.8, high)
        scale = 1 / (len(episodes) * len(e.logp)) if per_episode else 1 / num
        loss -= scale * float(surrogate.sum())
        gradient.append(-scale * slope)
    return loss, gradient


def mask_and_clip(episodes: Sequence[PlainEpisode], advs: Sequence[Floats]) -> tuple[float, list[Floats]]:
    num = sum(len(e.logp) for e in episodes)
    loss, gradient = 0.0, []
    for e, adv in zip(episodes, advs, strict=True):
        discrepancy = np.exp(e.prox - e.mu)
        weight = np.where((discrepancy >= 0.5) & (discrepancy <= 2.0), discrepancy, 0.0)
        surrogate, slope = clipped(np.exp(e.logp - e.prox), adv, 0.8, 1.2)
        loss -= float((weight * surrogate).sum()) / num
        gradient.append(-weight * slope / num)
    return loss, gradient


def dppo(episodes: Sequence[PlainEpisode], advs: Sequence[Floats]) -> tuple[float, list[Floats]]:
    num = sum(len(e.logp) for e in episodes)
    loss, gradient = 0.0, []
    for e, adv in zip(episodes, advs, strict=True):
        r = np.exp(e.logp - e.mu)
        kept = (adv * (r - 1) <= 0) | (np.abs(np.exp(e.logp) - np.exp(e.mu)) <= 1e-3)
        gradient.append(np.where(kept, -r * adv, 0.0) / num)
        loss += float(gradient[-1].sum())
    return loss, gradient


def sequence_clip(
    episodes: Sequence[PlainEpisode], advs: Sequence[Floats], *, is_adaptive: bool
) -> tuple[float, list[Floats]]:
    means = [float((e.logp - e.mu).mean()) for e in episodes]
    tokens = sorted(abs(d) for d, e in zip(means, episodes, strict=True) for _ in e.logp)
    q = tokens[math.ceil(0.9 * len(tokens)) - 1]
    loss, gradient = 0.0, []
    for e, adv, d in zip(episodes, advs, means, strict=True):
        c = 1 / (1 + (d / q) ** 2) if is_adaptive and abs(d) > q > 0 else 1.0
        low, high = 1 - 3e-4 * (c if d < 0 else 1), 1 + 4e-4 * (c if d > 0 else 1)
        surrogate, slope = clipped(np.array([math.exp(d)]), adv[:1], low, high)
        loss -= float(surrogate[0]) / len(episodes)
        gradient.append(np.full(len(e.logp), -float(slope[0]) / (len(e.logp) * len(episodes))))
    return loss, gradient


def sat(episodes: Sequence[PlainEpisode], advs: Sequence[Floats]) -> tuple[float, list[Floats]]:
    magnitudes = np.sort(np.abs(np.concatenate([e.logp - e.mu for e in episodes])))
    q = magnitudes[math.ceil(0.9 * len(magnitudes)) - 1]
    loss, gradient = 0.0, []
    for e, adv in zip(episodes, advs, strict=True):
        d = e.logp - e.mu
        c = np.where(np.abs(d) > q, 1 / (1 + (d / q) ** 2), 1.0)
        low, high = 1 - 0.2 * np.where(d < 0, c, 1), 1 + 0.2 * np.where(d > 0, c, 1)
        surrogate, slope = clipped(np.exp(d), adv, low, high)
        scale = 1 / (len(episodes) * len(e.logp))
        loss -= scale * float(surrogate.sum())
        gradient.append(-scale * slope)
    return loss, gradient


def loss_and_gradient(
    recipe: str, episodes: Sequence[PlainEpisode], advs: Sequence[Floats]
) -> tuple[float, list[Floats]]:
    """The policy loss and, per episode, its derivative by each action's log-prob."""
    match recipe:
        case "grpo":
            return ppo(episodes, advs, 1.28, per_episode=True)
        case "vapo":
            return ppo(episodes, advs, 1.28)
        case "ppo-bypass":
            return ppo(episodes, advs, 1.2)
        case "gspo":
            return sequence_clip(episodes, advs, is_adaptive=False)
        case "sat-gspo" | "sat-gspo-r3":
            return sequence_clip(episodes, advs, is_adaptive=True)
        case "sat-grpo":
            return sat(episodes, advs)
        case "dppo":
            return dppo(episodes, advs)
        case "decoupled-exact" | "decoupled-async" | "ppo-ewma" | "linear-prox" | "loglinear-prox":
            return mask_and_clip(episodes, advs)
        case _:
            return dis(recipe, episodes, advs)
