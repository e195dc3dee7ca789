"""What runs, in which order it starts and drains, and what each process is told."""

from __future__ import annotations

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from pydantic import SecretStr

from online_agent.config.serving import ApiSettings, EngineSettings
from online_agent.config.settings import BrokerSettings, load_settings
from online_agent.config.training import LearnerSettings
from online_agent.supervisor.plan import Deployment, api_file, plan_deployment, write_api_file
from online_agent.supervisor.readiness import announce_ready, answers_http, has_announced


def env_of(deployment: Deployment, name: str) -> dict[str, str]:
    return dict(next(spec.env for stage in deployment.plan.stages for spec in stage if spec.name == name))


def test_the_broker_starts_first_and_the_api_drains_first(tmp_path: Path) -> None:
    deployment = plan_deployment(load_settings(data_dir=tmp_path))
    stages = [[spec.name for spec in stage] for stage in deployment.plan.stages]
    assert stages == [["redis"], ["engine", "learner", "worker", "api"]]
    assert deployment.plan.stop_order == ["api", "learner", "worker", "engine", "redis"]


def test_what_runs_elsewhere_is_not_started_here(tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path,
        broker=BrokerSettings(url="redis://elsewhere:6379/0"),
        engine=EngineSettings(url="http://elsewhere:30000", api_key=SecretStr("engine-key")),
    )
    deployment = plan_deployment(settings)
    assert [[spec.name for spec in stage] for stage in deployment.plan.stages] == [["learner", "worker", "api"]]
    environment = env_of(deployment, "api")
    assert environment["ONLINE_AGENT_ENGINE__URL"] == "http://elsewhere:30000"
    assert environment["ONLINE_AGENT_ENGINE__API_KEY"] == "engine-key"
    assert environment["ONLINE_AGENT_BROKER__URL"] == "redis://elsewhere:6379/0"


def test_processes_share_ports_and_secrets_that_stand_in_no_argument_list(tmp_path: Path) -> None:
    deployment = plan_deployment(load_settings(data_dir=tmp_path, api=ApiSettings(port=0)))
    one, other = env_of(deployment, "api"), env_of(deployment, "engine")
    secrets = [one["ONLINE_AGENT_ENGINE__API_KEY"], one["ONLINE_AGENT_BROKER__URL"].split(":")[2].split("@")[0]]
    assert one["ONLINE_AGENT_ENGINE__URL"] == other["ONLINE_AGENT_ENGINE__URL"]
    assert one["ONLINE_AGENT_ENGINE__API_KEY"] == other["ONLINE_AGENT_ENGINE__API_KEY"]
    assert deployment.api_url == f"http://127.0.0.1:{one['ONLINE_AGENT_API__PORT']}"
    assert one["ONLINE_AGENT_API__PORT"] != "0"
    for stage in deployment.plan.stages:
        for spec in stage:
            assert all(secret not in argument for argument in spec.argv for secret in secrets)


def test_each_process_gets_its_number_of_threads(tmp_path: Path) -> None:
    deployment = plan_deployment(load_settings(data_dir=tmp_path, learner=LearnerSettings(num_threads=3)))
    assert env_of(deployment, "learner")["OMP_NUM_THREADS"] == "3"
    assert env_of(deployment, "api")["OMP_NUM_THREADS"] == "1"


def test_an_address_for_all_interfaces_is_reached_over_loopback(tmp_path: Path) -> None:
    deployment = plan_deployment(load_settings(data_dir=tmp_path, api=ApiSettings(host="0.0.0.0", port=1)))
    assert deployment.api_url == "http://127.0.0.1:1"


def test_the_api_file_says_where_it_answers(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    write_api_file(settings, "http://127.0.0.1:1", tmp_path / "keys" / "up.key", {"api": 7})
    assert json.loads(api_file(tmp_path).read_text()) == {
        "url": "http://127.0.0.1:1",
        "key_file": str(tmp_path / "keys" / "up.key"),
        "pids": {"api": 7},
    }


def test_a_process_that_announced_itself_is_ready_and_its_predecessor_is_not(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    assert not has_announced(tmp_path, "learner", os.getpid())
    announce_ready(settings, "learner")
    assert has_announced(tmp_path, "learner", os.getpid())
    assert not has_announced(tmp_path, "learner", os.getpid() + 1)
    assert not has_announced(tmp_path, "worker", os.getpid())


def test_a_probe_wants_a_200() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/fine" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        assert answers_http("127.0.0.1", port, "/fine")
        assert not answers_http("127.0.0.1", port, "/ill")
        server.shutdown()
        thread.join()
    assert not answers_http("127.0.0.1", port, "/fine")
