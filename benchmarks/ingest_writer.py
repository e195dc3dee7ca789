"""Writes turns until it is killed, and prints each (episode, number) once it is durable."""

from __future__ import annotations

import itertools
import sys

from benchmarks.ingest import TENANT, make_turns
from online_agent.store.records import EpisodeNew
from online_agent.store.session import Database


def main(url: str) -> None:
    db = Database(url)
    turns = make_turns(0)
    for number in itertools.count():
        with db.transaction() as tx:
            episode_id = tx.episodes.create(EpisodeNew(TENANT, "bench", f"train-{number}", "train"))
        for turn in turns:
            with db.transaction() as tx:
                stored = tx.episodes.add_turn(episode_id, turn)
            print(episode_id, stored, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
