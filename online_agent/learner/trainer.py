"""One SAO step: K critic updates and one actor update on a batch of episodes, each used once (arXiv 2607.07508).

Order of work, chosen so that nothing has moved when a guard fires:

1. critic pass 1: forward, advantages and returns from these values, backward; no update yet
2. actor pass: forward, DIS loss, backward; no update yet
3. guards over all action tokens of the step, the same on every rank; a failed guard discards both gradients
4. actor update, critic update 1, then K - 1 more critic passes and updates on the same returns

The values of pass 1 are the values *before* the K updates, so K passes cost K forward passes, not K + 1. Losses are
sums over a micro-batch divided by the action tokens of the whole step, so the cut into micro-batches and ranks does
not show in the gradient.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from online_agent.algo.advantages import moments, policy_lambda, returns, skip_observation_gae, whiten
from online_agent.algo.aggregation import global_token_mean
from online_agent.algo.references import ActiveTokens
from online_agent.algo.trust_regions import dis
from online_agent.config.settings import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner import checkpoint
from online_agent.learner.batching import MicroBatch, collate, num_fed_tokens, plan, unfit_reason
from online_agent.learner.diagnostics import (
    TokenTable,
    band_counts,
    not_finite_reason,
    token_metrics,
)
from online_agent.learner.models import Actor, Critic, load_causal_lm
from online_agent.learner.ranks import join_ranks
from online_agent.learner.reference import PROBE_STRIDE, PolicyReference
from online_agent.learner.report import MetricSheet, ReferenceReset, StepReport, batch_metrics, staleness_of
from online_agent.learner.zero_engine import ZeroEngine
from online_agent.recipes import Recipe
from online_agent.recipes.parts import Dis, SkipObservationGae
from online_agent.types import TrainingEpisode

CRITIC_LAMBDA = 1.0


class PolicyTrainer:
    """Actor, critic and EWMA reference of one policy. With several ranks every method is a collective."""

    def __init__(self, model_dir: Path, settings: LearnerSettings, recipe: Recipe) -> None:
        if not isinstance(recipe.advantage, SkipObservationGae) or not isinstance(recipe.trust_region, Dis):
            raise ConfigError(f"recipe {recipe.name} cannot be trained yet")
        self.settings = settings
        self.recipe = recipe
        self._gae, self._band = recipe.advantage, recipe.trust_region
        self.ranks = join_ranks(settings)
        torch.manual_seed(settings.seed)
        causal_lm = load_causal_lm(model_dir)
        self.vocab_size = int(causal_lm.config.get_text_config().vocab_size)
        actor = Actor(causal_lm).train().to(self.ranks.device)
        critic = Critic(
            causal_lm, bias_init=settings.critic_bias_init, freeze_pattern=settings.critic_freeze_pattern
        ).train()
        self.reference = PolicyReference(
            actor, tau=recipe.average.tau, staleness_versions=recipe.average.staleness_versions
        )
        self.actor = ZeroEngine(
            actor, lr=settings.actor_lr, clip_norm=settings.actor_clip_norm, settings=settings, ranks=self.ranks
        )
        self.critic = ZeroEngine(
            critic, lr=settings.critic_lr, clip_norm=settings.critic_clip_norm, settings=settings, ranks=self.ranks
        )
        self._backbone_prefix = f"causal_lm.{causal_lm.base_model_prefix}."
        self.model_files = checkpoint.read_model_files(model_dir)
        self.num_steps = 0

    @property
    def is_warming_up(self) -> bool:
        """The next step trains the critic alone."""
        return self.num_steps < self.settings.critic_warmup_steps

    def step(self, episodes: Sequence[TrainingEpisode], *, version: int, is_warmup: bool) -> StepReport:
        """Train once on ``episodes``; ``version`` is the published version the weights are at.

        A batch that cannot be used, or an update that is not finite, gives a report with ``skip_reason``.
        """
        sheet = MetricSheet()
        with self._timed(sheet, "total"):
            batch_metrics(sheet, episodes, version, self.settings.max_staleness_versions)
            sheet.put(actor__lr=self.actor.lr, critic__lr=self.critic.lr)
            reason = unfit_reason(episodes, self.vocab_size)
            report = StepReport(is_warmup, {}, reason) if reason else self._train(episodes, version, is_warmup, sheet)
        sheet.put(
            actor__updates=float(self.actor.num_updates),
            critic__updates=float(self.critic.num_updates),
            ewma__weight=self.reference.weight,
            ewma__beta=self.reference.beta,
            ewma__resets=float(self.reference.num_resets),
        )
        return StepReport(is_warmup, sheet.done(), report.skip_reason, report.needs_restore, report.resets)

    def reset_reference(self, cause: str) -> ReferenceReset:
        """The EWMA reference starts anew from the current actor (rollback, confirmed environment change)."""
        return self.reference.reset(self.actor.parameters(), cause)

    def fresh_critic(self, actor: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters a new critic of ``actor`` (by the actor network's names) starts from."""
        critic = self.critic.network
        assert isinstance(critic, Critic)
        return critic.initial_parameters(actor, self._backbone_prefix)

    def export(self, directory: Path) -> None:
        """``serving/`` and ``learner/`` under ``directory`` hold all that ``restore`` needs. Rank 0 writes."""
        checkpoint.export(self, directory)

    def restore(self, directory: Path) -> None:
        """Actor, critic, moments, LRs, reference, RNG and counters are those of ``directory``, bit for bit."""
        checkpoint.restore(self, directory)

    def _train(
        self, episodes: Sequence[TrainingEpisode], version: int, is_warmup: bool, sheet: MetricSheet
    ) -> StepReport:
        settings, device = self.settings, self.ranks.device
        rows = plan(
            episodes,
            max_tokens=settings.micro_batch_tokens,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        batches = [collate(episodes, chosen, device) for chosen in rows]
        num_tokens = float(sum(e.num_action_tokens for e in episodes))
        sheet.put(batch__non_pad_share=_non_pad_share(episodes, batches))

        with self._timed(sheet, "critic"):
            values, targets, advantages = self._first_critic_pass(batches, num_tokens)
        with self._timed(sheet, "actor"):
            logps = self._actor_pass(batches, advantages, num_tokens, is_warmup)
        table = self._token_table(batches, logps, advantages, values, targets)
        reason = not_finite_reason(table)
        bands = band_counts(table, eps_low=self._band.eps_low, eps_high=self._band.eps_high)
        token_metrics(sheet, table, bands, version)
        if reason is None and bands.masked_share > settings.max_masked_share:
            reason = f"trust region masks {bands.masked_share:.3f} of the tokens, above {settings.max_masked_share}"
        if reason is not None:
            self._discard(batches[0], is_warmup)
            return StepReport(is_warmup, {}, reason)

        reason, needs_restore = self._update(batches, targets, num_tokens, is_warmup, sheet)
        if reason is not None:
            return StepReport(is_warmup, {}, reason, needs_restore)
        with self._timed(sheet, "reference"):
            resets = self._advance_reference(episodes, batches, logps, advantages, version, is_warmup, sheet)
        self.num_steps += 1
        return StepReport(is_warmup, {}, resets=resets)

    def _first_critic_pass(
        self, batches: Sequence[MicroBatch], num_tokens: float
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Values, returns and advantages (N,) of each micro-batch; the critic holds the gradient of the MSE."""
        values, targets, advantages = [], [], []
        for batch in batches:
            values_N = self._values(batch)
            target_N, advantage_N = self._credit(batch, values_N.detach())
            self.critic.backward(self._critic_loss(values_N, target_N, num_tokens))
            values.append(values_N.detach())
            targets.append(target_N)
            advantages.append(advantage_N)
        if self._gae.is_whitened:
            advantages = self._whitened(advantages)
        return values, targets, advantages

    def _credit(self, batch: MicroBatch, values_N: Tensor) -> tuple[Tensor, Tensor]:
        """Critic targets and advantages (N,), skip-observation GAE over each row."""
        values_BP, mask_BP = batch.to_rows(values_N), batch.action_mask_BP
        gamma = self._gae.gamma
        lam_B = policy_lambda(batch.num_actions_B, self._gae.alpha)
        advantages_BP = skip_observation_gae(values_BP, mask_BP, batch.rewards_BP, gamma=gamma, lam_B=lam_B)
        critic_BP = skip_observation_gae(values_BP, mask_BP, batch.rewards_BP, gamma=gamma, lam_B=CRITIC_LAMBDA)
        return returns(critic_BP, values_BP, mask_BP)[mask_BP], advantages_BP[mask_BP]

    def _whitened(self, advantages: Sequence[Tensor]) -> list[Tensor]:
        """Mean 0 and deviation 1 over the action tokens of the whole step, all ranks together."""
        own_N = torch.cat(list(advantages))
        every_N = self.ranks.gather_tokens(own_N[None])[0]
        over = moments(every_N, torch.ones_like(every_N))
        return [whiten(a_N, torch.ones_like(a_N), over=over) for a_N in advantages]

    def _critic_loss(self, values_N: Tensor, target_N: Tensor, num_tokens: float) -> Tensor:
        squared_N = (values_N - target_N).square()
        return global_token_mean(squared_N, torch.ones_like(squared_N), num_tokens) * self.ranks.world_size

    def _actor_pass(
        self, batches: Sequence[MicroBatch], advantages: Sequence[Tensor], num_tokens: float, is_warmup: bool
    ) -> list[Tensor]:
        """Log-probs (N,) of each micro-batch; the actor holds the gradient of the DIS loss, except in warm-up."""
        logps = []
        for batch, advantages_N in zip(batches, advantages, strict=True):
            with torch.set_grad_enabled(not is_warmup):
                logp_N = self._logp(batch)
            if not is_warmup:
                self.actor.backward(self._actor_loss(batch, logp_N, advantages_N, num_tokens))
            logps.append(logp_N.detach())
        return logps

    def _logp(self, batch: MicroBatch) -> Tensor:
        logp_N: Tensor = self.actor(
            batch.token_ids_BT, batch.positions_N, batch.targets_N, batch.temperature_N, batch.num_shared
        )
        return logp_N

    def _values(self, batch: MicroBatch) -> Tensor:
        values_N: Tensor = self.critic(batch.token_ids_BT, batch.positions_N, batch.num_shared)
        return values_N

    def _actor_loss(self, batch: MicroBatch, logp_N: Tensor, advantages_N: Tensor, num_tokens: float) -> Tensor:
        mask_N = torch.ones_like(logp_N)
        surrogate = dis(
            logp_N,
            batch.logp_mu_N,
            advantages_N,
            mask_N,
            eps_low=self._band.eps_low,
            eps_high=self._band.eps_high,
        )
        return global_token_mean(surrogate.per_token_loss, mask_N, num_tokens) * self.ranks.world_size

    def _discard(self, batch: MicroBatch, is_warmup: bool) -> None:
        self.critic.discard(self._values(batch).sum())
        if not is_warmup:
            self.actor.discard(self._logp(batch).sum())

    def _update(
        self,
        batches: Sequence[MicroBatch],
        targets: Sequence[Tensor],
        num_tokens: float,
        is_warmup: bool,
        sheet: MetricSheet,
    ) -> tuple[str | None, bool]:
        """Actor, then critic with its K - 1 further passes. Returns why it stopped and whether weights had moved."""
        if not is_warmup:
            with self._timed(sheet, "actor"):
                applied = self.actor.apply()
            sheet.put(actor__grad_norm=applied.grad_norm)
            if not applied.is_applied:
                self.critic.discard(self._values(batches[0]).sum())
                return "actor gradient is not finite", False
        with self._timed(sheet, "critic"):
            for update in range(self._gae.critic.updates):
                if update:
                    self._critic_pass(batches, targets, num_tokens, sheet)
                applied = self.critic.apply()
                sheet.put(critic__grad_norm=applied.grad_norm)
                if not applied.is_applied:
                    return f"critic gradient is not finite in update {update + 1}", not is_warmup or update > 0
        return None, False

    def _critic_pass(
        self, batches: Sequence[MicroBatch], targets: Sequence[Tensor], num_tokens: float, sheet: MetricSheet
    ) -> None:
        total = torch.zeros((), device=self.ranks.device)
        for batch, target_N in zip(batches, targets, strict=True):
            loss = self._critic_loss(self._values(batch), target_N, num_tokens)
            self.critic.backward(loss)
            total += loss.detach() / self.ranks.world_size
        sheet.put(critic__loss_last=float(self.ranks.sum(total)))

    def _token_table(
        self,
        batches: Sequence[MicroBatch],
        logps: Sequence[Tensor],
        advantages: Sequence[Tensor],
        values: Sequence[Tensor],
        targets: Sequence[Tensor],
    ) -> TokenTable:
        own = TokenTable(
            logp_N=torch.cat(list(logps)),
            logp_mu_N=torch.cat([b.logp_mu_N for b in batches]),
            advantages_N=torch.cat(list(advantages)),
            values_N=torch.cat(list(values)),
            returns_N=torch.cat(list(targets)),
            versions_N=torch.cat([b.versions_N for b in batches]).float(),
        )
        return TokenTable.unstacked(self.ranks.gather_tokens(own.stacked()))

    def _advance_reference(
        self,
        episodes: Sequence[TrainingEpisode],
        batches: Sequence[MicroBatch],
        logps: Sequence[Tensor],
        advantages: Sequence[Tensor],
        version: int,
        is_warmup: bool,
        sheet: MetricSheet,
    ) -> tuple[ReferenceReset, ...]:
        """rho against the reference as it was in this step; then the new actor enters it or replaces it."""
        logp_E = _by_episode(batches, logps)
        advantages_E = _by_episode(batches, advantages)
        # Chosen from the whole batch, whoever holds the episode: the number of ranks does not move rho.
        usable = sorted(
            (i for i, e in enumerate(episodes) if num_fed_tokens(e)), key=lambda i: (-len(episodes[i].token_ids), i)
        )
        probed = usable[self.num_steps % PROBE_STRIDE :: PROBE_STRIDE] or usable[:1]
        chosen = tuple(i for i in probed if i in logp_E)
        counted = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        for start in plan([episodes[i] for i in chosen], max_tokens=self.settings.micro_batch_tokens):
            rows = tuple(chosen[i] for i in start)
            active = self._probe(collate(episodes, rows, self.ranks.device), logp_E, advantages_E)
            counted += torch.tensor([active.num_actions, active.num_in_mask, active.num_active], device=counted.device)
        total = ActiveTokens(*(int(n) for n in self.ranks.sum(counted).tolist()))
        sheet.put(
            ewma__active_share=total.ratio,
            ewma__active_share_mask_only=total.ratio_mask_only,
            ewma__probed_tokens=float(total.num_actions),
        )
        reset = self.reference.publish(self.actor.parameters(), staleness_of(episodes, version), total)
        return () if reset is None else (reset,)

    def _probe(self, batch: MicroBatch, logp_E: dict[int, Tensor], advantages_E: dict[int, Tensor]) -> ActiveTokens:
        return self.reference.probe(
            batch,
            logp_N=torch.cat([logp_E[i] for i in batch.episode_B]),
            advantages_N=torch.cat([advantages_E[i] for i in batch.episode_B]),
        )

    @contextmanager
    def _timed(self, sheet: MetricSheet, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        sheet.add_seconds(part, time.perf_counter() - started)


def _by_episode(batches: Sequence[MicroBatch], columns: Sequence[Tensor]) -> dict[int, Tensor]:
    """Per episode of this rank, its action tokens' entries."""
    split: dict[int, Tensor] = {}
    for batch, column_N in zip(batches, columns, strict=True):
        if batch.episode_B:
            split.update(zip(batch.episode_B, torch.split(column_N, batch.num_actions_B.tolist()), strict=True))
    return split


def _non_pad_share(episodes: Sequence[TrainingEpisode], batches: Sequence[MicroBatch]) -> float:
    """Of the positions this rank computes, the share that is not padding."""
    num_fed = sum(num_fed_tokens(episodes[i]) for batch in batches for i in batch.episode_B)
    return num_fed / sum(batch.num_padded_tokens for batch in batches)
