"""One main per process. ``online-agent up`` starts these; in containers each runs alone."""

from __future__ import annotations


def serve() -> None:
    """Run the HTTP API."""
    from online_agent.processes.serve import main

    main()


def engine() -> None:
    """Run the SGLang server on the current version, on this machine."""
    from online_agent.processes.engine import main

    main()


def learn() -> None:
    """Run the learner (DeepSpeed)."""
    from online_agent.processes.learn import main

    main()


def work() -> None:
    """Run the job worker with its schedule (Celery)."""
    from online_agent.processes.work import main

    main()
