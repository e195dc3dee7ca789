"""One step of any recipe: K critic updates where it has a critic, one actor update, each episode used once.

Order of work, chosen so that nothing has moved when a guard fires:

1. critic pass 1: forward, advantages and targets from these values, backward; no update yet
2. actor pass: forward, the recipe's loss, backward; no update yet
3. guards over all action tokens of the step, the same on every rank; a failed guard discards both gradients
4. actor update, critic update 1, then K - 1 more critic passes and updates on the same targets

Advantages ``values_from = "after"`` need the critic's updates between 1 and 2; a copy of the critic is then kept, and
put back when a guard fires. Losses are sums over a micro-batch divided by counts of the whole step, so the cut into
micro-batches and ranks does not show in the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from online_agent.config.training import LearnerSettings
from online_agent.learner import checkpoint
from online_agent.learner.batching import MicroBatch, collate, non_pad_share, num_fed_tokens, plan, unfit_reason
from online_agent.learner.credit import reward_credit, spread, whitened
from online_agent.learner.diagnostics import (
    TokenCounts,
    TokenTable,
    not_finite_reason,
    own_columns,
    region_metrics,
    token_metrics,
    trust_region_fault,
)
from online_agent.learner.networks import build_networks
from online_agent.learner.objective import StepCounts
from online_agent.learner.old_logits.scoring import Mask, score_on_all_ranks
from online_agent.learner.policy_learner import PolicyLearner, PolicyPass
from online_agent.learner.proximal import Proximal
from online_agent.learner.ranks import join_ranks
from online_agent.learner.reference import policy_inputs
from online_agent.learner.reference_step import ReferenceStep
from online_agent.learner.report import MetricSheet, ReferenceReset, StepReport, batch_metrics, clip_ratio
from online_agent.learner.routing import choose_routing
from online_agent.learner.running_rewards import RunningRewards
from online_agent.learner.value_learner import SavedCritic, ValueLearner, ValuePass
from online_agent.learner.zero_engine import ZeroEngine
from online_agent.recipes import Recipe
from online_agent.recipes.parts import Ewma, ExactOld, GroupNormalised, RunningMean
from online_agent.types import Float32Array, TrainingEpisode


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way."""

    episodes: Sequence[TrainingEpisode]
    batches: list[MicroBatch]
    counts: StepCounts
    version: int
    is_warmup: bool
    sheet: MetricSheet

    def skipped(
        self, reason: str, *, needs_restore: bool = False, resets: tuple[ReferenceReset, ...] = ()
    ) -> StepReport:
        return StepReport(self.is_warmup, {}, reason, needs_restore, resets)


class PolicyTrainer:
    """Actor, critic and EWMA reference of one policy. With several ranks every method is a collective."""

    def __init__(self, model_dir: Path, settings: LearnerSettings, recipe: Recipe) -> None:
        self.settings = settings
        self.recipe = recipe
        self.ranks = join_ranks(settings)
        self.networks = build_networks(model_dir, settings, recipe, self.ranks)
        self.reference = self.networks.reference
        self.values: ValueLearner | None = None
        advantage = recipe.advantage
        if not isinstance(advantage, RunningMean | GroupNormalised):
            assert self.networks.critic is not None
            self.values = ValueLearner(
                self.networks.critic,
                advantage,
                self.ranks,
                clip_norm=settings.critic_clip_norm,
                max_tokens=settings.micro_batch_tokens,
            )
        proximal = Proximal(recipe.reference, self.reference.log_probs)
        self.policy = PolicyLearner(self.networks.actor, recipe, proximal, self.ranks)
        self.running = RunningRewards(advantage if isinstance(advantage, RunningMean) else RunningMean())
        self._reference_step = ReferenceStep(self.reference, recipe, self.ranks, settings.micro_batch_tokens)
        self.model_files = checkpoint.read_model_files(model_dir)
        self.num_steps = 0
        self.num_critic_steps = 0

    @property
    def actor(self) -> ZeroEngine:
        return self.networks.actor

    @property
    def critic(self) -> ZeroEngine | None:
        return self.networks.critic

    @property
    def is_warming_up(self) -> bool:
        """The next step trains the critic alone."""
        return self.critic is not None and self.num_critic_steps < self.settings.critic_warmup_steps

    def step(self, episodes: Sequence[TrainingEpisode], *, version: int, is_warmup: bool) -> StepReport:
        """Train once on ``episodes``; ``version`` is the published version the weights are at.

        A batch that cannot be used, or an update that is not finite, gives a report with ``skip_reason``.
        """
        assert self.critic is not None or not is_warmup, "without a critic there is nothing to warm up"
        sheet = MetricSheet()
        with sheet.timed("total"):
            batch_metrics(sheet, episodes, version, self.settings.max_staleness_versions)
            sheet.put(actor__lr=self.actor.lr, critic__lr=None if self.critic is None else self.critic.lr)
            usable, unrouted = choose_routing(
                episodes, self.networks.routing_shape, is_replayed=self.recipe.replays_routing
            )
            reason = unfit_reason(episodes, self.networks.vocab_size) or unrouted
            if reason:
                report = StepReport(is_warmup, {}, reason)
            else:
                report = self._train(self._begin(usable, version, is_warmup, sheet))
        sheet.put(
            actor__updates=float(self.actor.num_updates),
            critic__updates=None if self.critic is None else float(self.critic.num_updates),
        )
        sheet.put(
            ewma__weight=self.reference.weight,
            ewma__beta=self.reference.beta,
            ewma__mean_age=self.reference.beta / (1 - self.reference.beta),
            ewma__weighted_age=self.reference.age_versions,
            ewma__resets=float(self.reference.num_resets),
        )
        return StepReport(is_warmup, sheet.done(), report.skip_reason, report.needs_restore, report.resets)

    def reset_reference(self, cause: str) -> ReferenceReset:
        """The EWMA reference starts anew from the current actor (rollback, confirmed environment change)."""
        return self.reference.reset(self.actor.parameters(), cause)

    def log_probs(self, episodes: Sequence[TrainingEpisode], chosen: Sequence[Mask]) -> list[Float32Array]:
        """(T,) each: the current policy's, at the chosen tokens; NaN elsewhere. Changes nothing."""

        def of_batch(batch: MicroBatch) -> Tensor:
            logp_N: Tensor = self.actor(*policy_inputs(batch, self.recipe.replays_routing))
            return logp_N

        max_tokens = self.settings.micro_batch_tokens
        return score_on_all_ranks(of_batch, episodes, chosen, max_tokens=max_tokens, ranks=self.ranks)

    def export(self, directory: Path) -> None:
        """``serving/`` and ``learner/`` under ``directory`` hold all that ``restore`` needs. Rank 0 writes."""
        checkpoint.export(self, directory)

    def restore(self, directory: Path) -> None:
        """Actor, critic, moments, LRs, reference, rewards, RNG and counters are those of ``directory``, bit for bit."""
        checkpoint.restore(self, directory)

    def _begin(self, episodes: Sequence[TrainingEpisode], version: int, is_warmup: bool, sheet: MetricSheet) -> _Step:
        rows = plan(
            episodes,
            max_tokens=self.settings.micro_batch_tokens,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        batches = [collate(episodes, chosen, self.ranks.device) for chosen in rows]
        is_packed = self.settings.batching == "packed"
        sheet.put(batch__non_pad_share=1.0 if is_packed else non_pad_share(episodes, batches))
        counts = StepCounts(
            num_tokens=sum(e.num_action_tokens for e in episodes),
            num_episodes=sum(1 for e in episodes if num_fed_tokens(e)),
        )
        return _Step(episodes, batches, counts, version, is_warmup, sheet)

    def _train(self, step: _Step) -> StepReport:
        sheet, saved = step.sheet, None
        with sheet.timed("critic"):
            first = self._first_value_pass(step)
        if self.values is not None and self.values.is_read_after_updates:
            assert first is not None
            saved = self.values.saved()
            reason = self._update_critic(step, first)
            if reason is not None:
                self.values.put_back(saved)
                return step.skipped(reason)
        with sheet.timed("critic"):
            advantages = self._advantages(step, first)
        with sheet.timed("reference"):
            fixed = self.policy.fixed(step.batches, step.episodes)
        with sheet.timed("actor"):
            seen = self.policy.run(step.batches, advantages, fixed, step.counts, is_warmup=step.is_warmup)
        table, counts = self._measure(step, first, advantages, seen)
        not_finite = not_finite_reason(table, has_critic=first is not None)
        reason = not_finite or trust_region_fault(counts, self.settings.max_masked_share)
        if reason is not None:
            self._discard(step, saved)
            return step.skipped(reason, resets=() if not_finite else self._reset_if_it_masks())
        failure = self._update(step, first, saved)
        if failure is not None:
            return failure
        with sheet.timed("reference"):
            reset = self._reference_step.advance(
                step.episodes,
                step.batches,
                seen,
                advantages,
                parameters=self.actor.parameters(),
                version=step.version,
                num_steps=self.num_steps,
                sheet=sheet,
            )
        self.running.observe(step.episodes)
        self.num_steps += 1
        self.num_critic_steps += self.values is not None
        return StepReport(step.is_warmup, {}, resets=() if reset is None else (reset,))

    def _first_value_pass(self, step: _Step) -> ValuePass | None:
        if self.values is None:
            return None
        return self.values.first_pass(step.batches, step.episodes, step.counts.num_tokens)

    def _advantages(self, step: _Step, first: ValuePass | None) -> list[Tensor]:
        """(N,) of each micro-batch."""
        advantage = self.recipe.advantage
        if isinstance(advantage, RunningMean | GroupNormalised):
            advantages_E = reward_credit(advantage, step.episodes, self.running)
            advantages = [spread(advantages_E, batch) for batch in step.batches]
        else:
            assert self.values is not None
            assert first is not None
            is_after = self.values.is_read_after_updates
            advantages = self.values.advantages_now(step.batches, step.episodes) if is_after else first.advantages
        return whitened(advantages, self.ranks) if advantage.is_whitened else advantages

    def _measure(
        self, step: _Step, first: ValuePass | None, advantages: Sequence[Tensor], seen: PolicyPass
    ) -> tuple[TokenTable, TokenCounts]:
        """What the guards judge, the same on every rank; it goes to the sheet too."""
        table = TokenTable.unstacked(self.ranks.gather_tokens(own_columns(step.batches, first, advantages, seen)))
        counts = TokenCounts.of(seen.metrics, step.counts.num_tokens)
        token_metrics(step.sheet, table, step.version, has_critic=first is not None)
        region_metrics(step.sheet, counts, seen.metrics, seen.statistics.threshold)
        step.sheet.put(actor__loss=seen.loss)
        if isinstance(self.recipe.reference, ExactOld):
            step.sheet.put(old_logits__missing_tokens=float(seen.num_unknown))
        return table, counts

    def _reset_if_it_masks(self) -> tuple[ReferenceReset, ...]:
        """A recipe held back by its own average would skip for ever: nothing else moves the average then."""
        is_average = isinstance(self.recipe.reference, Ewma)
        return (self.reset_reference("trust_region_fault"),) if is_average else ()

    def _discard(self, step: _Step, saved: SavedCritic | None) -> None:
        if not step.is_warmup:
            self.actor.discard()
        self._discard_critic(saved)

    def _update(self, step: _Step, first: ValuePass | None, saved: SavedCritic | None) -> StepReport | None:
        """Actor, then critic. What to report when one of them was not finite; None when all is done."""
        if not step.is_warmup:
            with step.sheet.timed("actor"):
                applied = self.actor.apply()
            step.sheet.put(
                actor__grad_norm=applied.grad_norm,
                actor__clip_ratio=clip_ratio(applied.grad_norm, self.settings.actor_clip_norm),
            )
            if not applied.is_applied:
                self._discard_critic(saved)
                return step.skipped("actor gradient is not finite")
        if self.values is None or first is None or self.values.is_read_after_updates:
            return None
        updates_before = self.values.engine.num_updates
        reason = self._update_critic(step, first)
        if reason is None:
            return None
        has_moved = not step.is_warmup or self.values.engine.num_updates > updates_before
        return step.skipped(reason, needs_restore=has_moved)

    def _discard_critic(self, saved: SavedCritic | None) -> None:
        if self.values is None:
            return
        if saved is not None:
            self.values.put_back(saved)
        else:
            self.values.engine.discard()

    def _update_critic(self, step: _Step, first: ValuePass) -> str | None:
        assert self.values is not None
        with step.sheet.timed("critic"):
            failed = self.values.update(step.batches, first, step.counts.num_tokens, step.sheet)
        return None if failed is None else f"critic gradient is not finite in update {failed}"
