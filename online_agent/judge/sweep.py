"""Answers that something followed are judged, off the path of any request, and the verdict is feedback.

Invariants
- Only what may be trained on leaves the service: episodes of tenants that opted in, turns without a reason against it.
- An answer has one verdict or was given up, in the transaction that says so; a crash before it asks again.
- A judge that fails leaves no feedback, and serving never waits for it. One process at a time asks it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from online_agent.config.signal import JudgeSettings
from online_agent.errors import Busy, Conflict, JudgeFailed, JudgeUnavailable, NotFound
from online_agent.judge.protocol import Judge, JudgeCase, Judgement
from online_agent.redaction import Redactor
from online_agent.rendering import ChatRenderer
from online_agent.store.records import DueJudgement, FeedbackNew, FeedbackTrust
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase
from online_agent.telemetry.logging import get_logger
from online_agent.types import Span, SpanKind

log = get_logger(__name__)

SOURCE = "judge"
GIVEN, FAILED, UNAVAILABLE = "given", "failed", "unavailable"
_LEASE = "judge"


class JudgeSweep:
    """``start`` inside a running event loop; ``close`` ends it. ``tell`` hears the outcome of each case."""

    def __init__(
        self,
        db: Database,
        renderer: ChatRenderer,
        judge: Judge,
        settings: JudgeSettings,
        trust: FeedbackTrust,
        redactor: Redactor,
        threads: Executor,
        tell: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._store = ThreadedDatabase(db, threads)
        self._renderer, self._judge, self._settings = renderer, judge, settings
        self._trust, self._redactor, self._tell = trust, redactor, tell
        self._owner = secrets.token_hex(8)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._for_ever(), name="judge")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._judge.aclose()

    async def once(self) -> int:
        """How many answers were judged or given up. Stops at the first case that the judge is not there for."""
        due = await self._store.write(self._due)
        num_done = 0
        for start in range(0, len(due), self._settings.num_at_once):
            outcomes = await asyncio.gather(
                *(self._settle(one) for one in due[start : start + self._settings.num_at_once])
            )
            num_done += sum(outcome != UNAVAILABLE for outcome in outcomes)
            if UNAVAILABLE in outcomes:
                break
        return num_done

    async def _for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self.once()
            except Busy as error:
                log.warning("nothing judged", reason=error.message)
            except Exception:
                log.exception("judging failed")  # the boundary of a job: a judge of one's own may raise anything

    async def _settle(self, due: DueJudgement) -> str:
        """The outcome, stored unless the judge is to be asked again."""
        judgement: Judgement | None = None
        try:
            judgement = await self._judge.judge(await self._store.read(partial(self._case, due)))
            outcome = GIVEN
        except JudgeUnavailable as error:
            log.warning("judge not there", reason=error.message)
            self._tell(UNAVAILABLE)
            return UNAVAILABLE
        except (JudgeFailed, NotFound) as error:
            log.warning("answer not judged", episode_id=due.episode_id, turn=due.turn, reason=error.message)
            outcome = FAILED
        await self._store.write(partial(self._settled, due, outcome, judgement))
        self._tell(outcome)
        return outcome

    def _due(self, tx: Transaction) -> list[DueJudgement]:
        lease_s = self._settings.interval_s + self._settings.batch * self._settings.timeout_s
        if not tx.leases.acquire(_LEASE, self._owner, lease_s):
            return []
        return tx.judgements.due(self._settings.batch)

    def _case(self, due: DueJudgement, tx: Transaction) -> JudgeCase:
        spans = tx.clients.spans_of(due.episode_id, (due.turn, due.next_turn))
        if due.turn not in spans or due.next_turn not in spans:
            raise NotFound(f"the turns of {due.episode_id} are gone")
        asked, answer = self._texts(spans[due.turn])
        followed, _ = self._texts(spans[due.next_turn])
        return JudgeCase(asked, answer, followed)

    def _texts(self, spans: Sequence[Span]) -> tuple[str, str]:
        """What led to the answer of a turn, and the answer, each as its last ``max_chars``."""
        at = next(i for i, span in enumerate(spans) if span.kind is SpanKind.ACTION)
        parts = (spans[:at], spans[at : at + 1])
        limit = self._settings.max_chars
        asked, answer = ("".join(self._renderer.decode(span.token_ids) for span in part)[-limit:] for part in parts)
        return asked, answer

    def _settled(self, due: DueJudgement, outcome: str, judgement: Judgement | None, tx: Transaction) -> None:
        if tx.judgements.add(due, outcome) and judgement is not None:
            self._give(tx, due, judgement)

    def _give(self, tx: Transaction, due: DueJudgement, judgement: Judgement) -> None:
        text = self._redactor.text(judgement.reason) or None
        new = FeedbackNew(SOURCE, judgement.reward, text, (due.turn,), weight=self._settings.weight)
        try:
            tx.feedback.add(due.tenant_id, due.episode_id, new, self._trust)
        except (NotFound, Conflict) as error:
            log.warning("verdict not kept", episode_id=due.episode_id, reason=error.message)
            return
        tx.clients.settle(due.episode_id)
