from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from online_agent.config.serving import EngineSettings
from online_agent.config.training import LoraSettings
from online_agent.errors import ConfigError
from online_agent.serving import launcher
from online_agent.serving.launcher import CPU_STUB_DIR, EngineCommand, EngineProcess, context_length, engine_command
from online_agent.weights.adapter import Base, write_base
from tests.waiting import until

KEY = "a-very-secret-key"


def options(command: EngineCommand) -> dict[str, str]:
    pairs = (word.partition("=") for word in command.argv if word.startswith("--"))
    return {name: value for name, _, value in pairs}


def test_a_cpu_server_runs_on_the_stub_and_on_one_thread(
    model_dirs: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLINE_AGENT_DATABASE__URL", "postgresql://user:password@host/db")
    command = engine_command(EngineSettings(max_total_tokens=4096), model_dirs[1], 12, 5000, None)
    given = options(command)
    assert given["--model-path"] == str(model_dirs[1])
    assert (given["--weight-version"], given["--port"], given["--host"]) == ("12", "5000", "127.0.0.1")
    assert given["--device"] == "cpu"
    assert "--disable-overlap-schedule" in given
    assert command.env["PYTHONPATH"].split(os.pathsep)[0] == str(CPU_STUB_DIR)
    assert (command.env["OMP_NUM_THREADS"], command.env["SGLANG_USE_CPU_ENGINE"]) == ("1", "1")
    assert not [name for name in command.env if name.startswith("ONLINE_AGENT_")]


def test_a_gpu_server_gets_neither_stub_nor_cpu_flags(model_dirs: dict[int, Path]) -> None:
    settings = EngineSettings(device="cuda", dtype="bfloat16", extra_args=("--tp-size=2",))
    command = engine_command(settings, model_dirs[1], 1, 5000, None)
    given = options(command)
    assert given["--dtype"] == "bfloat16"
    assert given["--tp-size"] == "2"
    assert not {"--device", "--disable-overlap-schedule", "--attention-backend"} & set(given)
    assert str(CPU_STUB_DIR) not in command.env.get("PYTHONPATH", "")


def test_a_grammar_needs_the_servers_own_tokenizer_and_nothing_else_does(model_dirs: dict[int, Path]) -> None:
    plain = options(engine_command(EngineSettings(), model_dirs[1], 1, 5000, None))
    held = options(engine_command(EngineSettings(grammar_backend="xgrammar"), model_dirs[1], 1, 5000, None))
    assert ("--skip-tokenizer-init" in plain, plain["--grammar-backend"]) == (True, "none")
    assert ("--skip-tokenizer-init" in held, held["--grammar-backend"]) == (False, "xgrammar")


LORA = LoraSettings(rank=8, target_modules=("o_proj", "down_proj"))


def test_a_server_with_adapters_has_room_for_those_of_the_settings(model_dirs: dict[int, Path]) -> None:
    on_cpu = engine_command(EngineSettings(), model_dirs[1], 1, 5000, None, LORA)
    given = options(on_cpu)
    assert {"--enable-lora", "--lora-strict-loading"} <= set(given)
    assert (given["--max-lora-rank"], given["--lora-backend"]) == ("8", "torch_native")
    at = on_cpu.argv.index("--lora-target-modules")
    assert on_cpu.argv[at + 1 :] == ("o_proj", "down_proj")
    assert "--lora-backend" not in options(
        engine_command(EngineSettings(device="cuda"), model_dirs[1], 1, 5000, None, LORA)
    )
    assert "--enable-lora" not in options(engine_command(EngineSettings(), model_dirs[1], 1, 5000, None))


def adapter_of(model_dir: Path, root: Path, *, rank: int) -> Path:
    """The served directory of version 3, an adapter of version 0."""
    shutil.copytree(model_dir, root / "v000000" / "serving")
    serving_dir = root / "v000003" / "serving"
    shutil.copytree(model_dir, serving_dir, ignore=shutil.ignore_patterns("*.safetensors"))
    (serving_dir / "adapter_config.json").write_text(json.dumps({"r": rank}))
    write_base(serving_dir, Base(0, "f" * 64))
    return serving_dir


def test_a_version_with_an_adapter_is_served_over_its_base_from_the_start(
    model_dirs: dict[int, Path], tmp_path: Path
) -> None:
    serving_dir = adapter_of(model_dirs[1], tmp_path, rank=32)
    command = engine_command(EngineSettings(), serving_dir, 3, 5000, None, LORA)
    given = options(command)
    assert given["--model-path"] == str(tmp_path / "v000000" / "serving")
    assert (given["--weight-version"], given["--max-lora-rank"]) == ("3", "32")
    at = command.argv.index("--lora-paths")
    assert command.argv[at + 1] == f"v000003={serving_dir}"


def test_an_adapter_is_not_served_by_a_configuration_that_would_not_ask_for_it(
    model_dirs: dict[int, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"version 3 is an adapter: set learner\.actor"):
        engine_command(EngineSettings(), adapter_of(model_dirs[1], tmp_path, rank=8), 3, 5000, None)


def test_the_context_is_never_longer_than_the_model(model_dirs: dict[int, Path], tmp_path: Path) -> None:
    assert context_length(EngineSettings(context_length=512), model_dirs[1]) == 512
    assert context_length(EngineSettings(context_length=5000), model_dirs[1]) == 1024
    with pytest.raises(ConfigError, match="config"):
        context_length(EngineSettings(), tmp_path)


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The server is a small script instead."""

    def command(
        settings: EngineSettings, serving_dir: Path, version: int, port: int, keys: Path | None, lora: object
    ) -> EngineCommand:
        assert keys is None or keys.stat().st_mode & 0o077 == 0
        return EngineCommand((sys.executable, "-c", script), dict(os.environ))

    monkeypatch.setattr(launcher, "engine_command", command)


def process(model_dirs: dict[int, Path], run_dir: Path) -> EngineProcess:
    return EngineProcess(EngineSettings(api_key=SecretStr(KEY)), model_dirs[1], 1, port=5000, run_dir=run_dir)


def test_keys_lie_in_a_file_for_this_user_alone(
    model_dirs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "pass")
    engine = process(model_dirs, tmp_path)
    engine.start()
    engine.stop()
    key_file = tmp_path / "engine_keys.yaml"
    assert key_file.read_text() == f'{{"api-key":"{KEY}","admin-api-key":"{KEY}"}}'
    assert {path.stat().st_mode & 0o777 for path in (key_file, engine.log_file)} == {0o600}
    real = engine_command(EngineSettings(api_key=SecretStr(KEY)), model_dirs[1], 1, 5000, key_file)
    assert KEY not in " ".join(real.argv)
    assert KEY not in repr(real)


@pytest.mark.parametrize("hears_terminate", [True, False])
async def test_stopping_takes_the_children_along_also_when_they_refuse(
    model_dirs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hears_terminate: bool
) -> None:
    deaf = "" if hears_terminate else "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    child = f"import signal, time; {deaf} print('child up', flush=True); time.sleep(60)"
    stand_in(monkeypatch, f"import signal, subprocess, sys; {deaf} subprocess.run([sys.executable, '-c', {child!r}])")
    engine = process(model_dirs, tmp_path)
    engine.start()
    assert engine.pid is not None
    await until(lambda: engine.log_tail() == "child up\n")
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    assert len(family) == 2
    engine.stop(grace_s=0.5)
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not engine.is_running
    assert engine.exit_code == -(signal.SIGTERM if hears_terminate else signal.SIGKILL)
    engine.stop()  # again: nothing to do


async def test_children_of_a_server_that_was_killed_are_stopped_too(
    model_dirs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = "import time; print('child up', flush=True); time.sleep(60)"
    stand_in(monkeypatch, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    engine = process(model_dirs, tmp_path)
    engine.start()
    assert engine.pid is not None
    await until(lambda: engine.log_tail() == "child up\n")
    [orphan] = psutil.Process(engine.pid).children()
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not engine.is_running)
    assert orphan.is_running()
    engine.stop(grace_s=0.2)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_the_stub_stands_in_for_what_is_only_imported() -> None:
    program = """
import triton, triton.language as tl, torchvision, sgl_kernel
from torchvision.transforms import InterpolationMode
assert InterpolationMode.BICUBIC.name == "BICUBIC"
assert triton.cdiv(7, 2) == 4 and triton.next_power_of_2(5) == 8 and triton.__version__ == "3.9.0"
@triton.autotune(configs=[], key=[])
@triton.jit
def kernel(x, BLOCK: tl.constexpr): return x
driver = triton.runtime.driver
for broken in (lambda: kernel(1), lambda: sgl_kernel.anything(1), lambda: driver.active.get_current_target()):
    try:
        broken()
    except (RuntimeError, NotImplementedError): continue
    raise SystemExit(f"{broken} did not raise")
try:
    import sgl_kernel.scalar_type
except ImportError: pass
else: raise SystemExit("sgl_kernel has a submodule")
"""
    environment = {**os.environ, "PYTHONPATH": str(CPU_STUB_DIR)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
