"""What any sandbox must do, whatever it is built of. One suite, run against each implementation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator

import pytest

from envs.errors import SandboxFailed
from envs.protocols import Sandbox
from envs.sandbox.nsjail import NsjailSandbox

PYTHON = ["/usr/bin/python3", "-I", "-S"]
IMPLEMENTATIONS: dict[str, Callable[[], Sandbox]] = {
    "nsjail": lambda: NsjailSandbox(max_jobs=2, max_output_bytes=1000, first_uid=26_001),
}


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    box = IMPLEMENTATIONS[request.param]()
    yield box
    asyncio.run(box.close())


async def test_job_sees_its_files_and_its_output_and_exit_come_back(sandbox: Sandbox) -> None:
    files = {"main.py": "print(open('data/a/b.txt').read()); raise SystemExit(3)", "data/a/b.txt": "grüße\n"}
    result = await sandbox.run([*PYTHON, "main.py"], files, timeout_s=5)
    assert result.output == "grüße\n\n"
    assert result.exit_code == 3
    assert (result.is_timeout, result.is_output_truncated, result.files) == (False, False, None)


async def test_stdout_and_stderr_come_in_the_order_they_were_written(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], {}, timeout_s=5)
    assert result.output == "1\n2\n3\n"


async def test_script_arguments_and_names_are_those_of_a_plain_interpreter(sandbox: Sandbox) -> None:
    script = "import sys\nprint(sys.argv, __name__, __file__, 'json' in sys.modules)"
    result = await sandbox.run([*PYTHON, "main.py", "a", "-b"], {"main.py": script}, timeout_s=5)
    assert result.output == "['main.py', 'a', '-b'] __main__ main.py False\n"


async def test_uncaught_exception_shows_the_script_alone(sandbox: Sandbox) -> None:
    result = await sandbox.run([*PYTHON, "main.py"], {"main.py": "def f():\n    1 / 0\nf()\n"}, timeout_s=5)
    assert result.exit_code == 1
    assert result.output.splitlines()[:2] == [
        "Traceback (most recent call last):",
        '  File "main.py", line 3, in <module>',
    ]
    assert result.output.endswith("ZeroDivisionError: division by zero\n")
    assert "loader" not in result.output


async def test_syntax_error_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.run([*PYTHON, "main.py"], {"main.py": "x = ("}, timeout_s=5)
    assert result.exit_code == 1
    assert "SyntaxError" in result.output


async def test_threads_and_exit_functions_of_a_script_finish(sandbox: Sandbox) -> None:
    script = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'bye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )
    result = await sandbox.run([*PYTHON, "main.py"], {"main.py": script}, timeout_s=5)
    assert result.output == "thread\nbye\n"


@pytest.mark.parametrize("argv", [["no-such-program"], ["/usr/bin/no-such-program"], [*PYTHON, "no-such-script.py"]])
async def test_missing_program_is_a_result(sandbox: Sandbox, argv: list[str]) -> None:
    result = await sandbox.run(argv, {}, timeout_s=5)
    assert result.exit_code in (2, 127)
    assert "No such file" in result.output


@pytest.mark.parametrize("as_verifier", [False, True])
async def test_files_left_behind_come_back_and_links_are_only_reported(sandbox: Sandbox, as_verifier: bool) -> None:
    line = (
        "echo new > b.txt; rm gone.txt; mkdir -p d/e; echo deep > d/e/f; ln -s / out; ln -s b.txt in;"
        " printf '\\377' > binary; mkfifo pipe; head -c 300000 /dev/zero > large; exit 4"
    )
    files = {"a.txt": "as it was", "gone.txt": "x"}
    result = await sandbox.run(["sh", "-c", line], files, timeout_s=5, collect_files=True, as_verifier=as_verifier)
    assert result.exit_code == 4
    assert result.files == {"a.txt": "as it was", "b.txt": "new\n", "d/e/f": "deep\n"}
    assert dict(result.links) == {"out": "/", "in": "b.txt"}
    assert sorted(result.skipped_files) == ["binary", "large", "pipe"]


async def test_files_are_not_changed_behind_the_collection(sandbox: Sandbox) -> None:
    line = "(while :; do echo x >> grows; done) & sleep 0.1; exit 0"
    result = await sandbox.run(["sh", "-c", line], {}, timeout_s=5, collect_files=True)
    assert result.exit_code == 0
    assert result.files is not None
    assert set(result.files["grows"]) == {"x", "\n"}


async def test_more_files_than_the_limit_are_cut_and_said(sandbox: Sandbox) -> None:
    script = "for n in range(2000): open(f'{n:04}', 'w').close()"
    result = await sandbox.run([*PYTHON, "main.py"], {"main.py": script}, timeout_s=10, collect_files=True)
    assert result.files is not None
    assert len(result.files) == 1024
    assert result.skipped_files == ("(more files than the limit)",)


@pytest.mark.parametrize(
    ("hostile", "expected"),
    [
        ("import os; os.kill(1, 2); os.kill(1, 15); os.kill(os.getppid(), 19)", {"kept": "k"}),
        ("import os; os.chmod('.', 0)", {}),
        ("import os, shutil; shutil.rmtree(os.getcwd())", {}),
        ("import os; os.mkdir('shut', 0)", {"kept": "k"}),
        ("import os; os.rename('/tmp/workspace', '/tmp/w'); os.symlink('/usr', '/tmp/workspace')", {"kept": "k"}),
        ("import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')", {"kept": "k"}),
        ("import os; os.mkdir(b'\\xff'); open(b'\\xff/\\xfe', 'w').close()", {"kept": "k", "\ufffd/\ufffd": ""}),
    ],
)
async def test_job_cannot_break_the_collection_of_its_files(
    sandbox: Sandbox, hostile: str, expected: dict[str, str]
) -> None:
    files = {"kept": "k", "main.py": hostile}
    result = await sandbox.run([*PYTHON, "main.py"], files, timeout_s=20, collect_files=True)
    assert (result.exit_code, result.output) == (0, "")
    assert result.files is not None
    assert {path: text for path, text in result.files.items() if path != "main.py"} == expected


async def test_job_over_its_deadline_is_a_result_without_files(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "echo begun; sleep 30"], {}, timeout_s=0.5, collect_files=True)
    assert (result.output, result.is_timeout, result.files) == ("begun\n", True, None)
    assert 0.5 <= result.wall_s < 3


async def test_silent_job_that_closed_its_output_still_meets_its_deadline(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "exec >&- 2>&-; sleep 30"], {}, timeout_s=0.5)
    assert result.is_timeout


async def test_more_jobs_than_slots_all_run(sandbox: Sandbox) -> None:
    jobs = [sandbox.run(["sh", "-c", f"echo {n}"], {}, timeout_s=5) for n in range(12)]
    assert [result.output for result in await asyncio.gather(*jobs)] == [f"{n}\n" for n in range(12)]


async def test_job_killed_by_a_signal_has_the_shell_s_exit_code(sandbox: Sandbox) -> None:
    result = await sandbox.run(["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], {}, timeout_s=5)
    assert result.exit_code == 137


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a"])
async def test_file_path_outside_the_working_directory_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="working directory"):
        await sandbox.run(["true"], {path: ""}, timeout_s=1)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf])
async def test_deadline_that_is_none_is_refused(sandbox: Sandbox, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        await sandbox.run(["true"], {}, timeout_s=timeout_s)


async def test_files_too_large_for_a_job_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="over the limit"):
        await sandbox.run(["true"], {"a": "x" * (17 << 20)}, timeout_s=1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_closed_sandbox_fails_instead_of_running(implementation: str) -> None:
    box = IMPLEMENTATIONS[implementation]()
    assert (await box.run(["echo", "1"], {}, timeout_s=5)).output == "1\n"
    await box.close()
    with pytest.raises(SandboxFailed):
        await box.run(["echo", "2"], {}, timeout_s=5)
