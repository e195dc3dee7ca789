"""``online-agent tenant`` says what it is told and shows what the service knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from tests.unit.cli.conftest import ScriptedApi

TENANT = {"tenant_id": "acme", "trains_shared_weights": False, "changed_at": 1.0, "num_held": 2, "versions": [3, 5]}


@pytest.mark.parametrize(("command", "trains"), [("opt-in", True), ("opt-out", False)])
def test_a_tenant_opts_in_and_out(api: ScriptedApi, run: Callable[..., Result], command: str, trains: bool) -> None:
    api.answers["PUT /v1/tenant"] = (200, TENANT)
    assert run("tenant", command).exit_code == 0
    assert api.calls == [("PUT", "/v1/tenant", {}, {"trains_shared_weights": trains})]


def test_show_names_the_versions_trained_before(api: ScriptedApi, run: Callable[..., Result]) -> None:
    api.answers["GET /v1/tenant"] = (200, TENANT)
    output = run("tenant", "show").output
    assert "episodes of acme do not train the shared weights" in output
    assert "versions trained on its episodes: 3, 5" in output
    assert "2 of its episodes are in a step that runs" in output
