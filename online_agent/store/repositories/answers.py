"""What the answers of each weight version amount to."""

from __future__ import annotations

from sqlalchemy import func, select

from online_agent.store.models import Completion, WeightVersion
from online_agent.store.records import AnswerCounts
from online_agent.store.repositories.base import Repository, check_limit
from online_agent.types import AnswerKind


class AnswerRepository(Repository):
    def by_version(self, num_versions: int) -> list[AnswerCounts]:
        """The answers to clients under the newest ``num_versions`` versions, newest first, where there are any."""
        newest = select(WeightVersion.version).order_by(WeightVersion.version.desc()).limit(check_limit(num_versions))
        query = (
            select(Completion.weight_version, Completion.has_tools, Completion.answer_kind, func.count())
            .where(Completion.weight_version.in_(newest), Completion.answer_kind.is_not(None))
            .group_by(Completion.weight_version, Completion.has_tools, Completion.answer_kind)
            .order_by(Completion.weight_version.desc())
        )
        counts: dict[int, dict[tuple[bool, AnswerKind], int]] = {}
        for version, has_tools, kind, num in self._db.execute(query):
            if version is not None and kind is not None:
                counts.setdefault(version, {})[bool(has_tools), AnswerKind(kind)] = int(num)
        return [AnswerCounts(version, of_version) for version, of_version in counts.items()]
