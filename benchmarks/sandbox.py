"""CPU time of one small Python job: a jail of a warm slot against an nsjail process for each job.

    python -m benchmarks.sandbox [--jobs 100] [--rounds 5]

CPU, not wall time, is what counts beside a learner that fills the machine. Counted is all of it, user and system, of
this process and of everything it started; the runs take turns, so that both see the same machine. What the kernel does
on its own threads (taking network namespaces down) is in neither figure.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys

from envs.sandbox.command import JailSpec, find_nsjail
from envs.sandbox.nsjail import NsjailSandbox

JOB = "total = 0\nfor n in range(100):\n    total += n\nprint('passed' if total == 4950 else 'failed')\n"
UID = 29_001


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def in_warm_slots(num_jobs: int) -> None:
    async def run() -> None:
        sandbox = NsjailSandbox(max_jobs=1, first_uid=UID)
        for _ in range(num_jobs):
            result = await sandbox.run(["/usr/bin/python3", "-I", "-S", "job.py"], {"job.py": JOB}, timeout_s=10)
            assert result.output == "passed\n"
        await sandbox.close()

    asyncio.run(run())


def in_one_nsjail_each(num_jobs: int) -> None:
    argv = JailSpec(find_nsjail(), UID, memory_mb=512).argv()
    argv[argv.index("--mode") + 1] = "o"
    program = argv.index("--", argv.index("--mode"))
    command = [*argv[4:program], "--really_quiet", "--", "/usr/bin/python3", "-c", JOB]
    for _ in range(num_jobs):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
        assert done.stdout == "passed\n", done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spent_ms: dict[str, list[float]] = {"warm slot": [], "one nsjail each": []}
    for _ in range(options.rounds):
        for name, run in (("warm slot", in_warm_slots), ("one nsjail each", in_one_nsjail_each)):
            before = cpu_s()
            run(options.jobs)
            spent_ms[name].append((cpu_s() - before) / options.jobs * 1000)
    for name, values in spent_ms.items():
        sys.stdout.write(
            f"{name}: {statistics.median(values):.1f} ms CPU per job ({min(values):.1f}–{max(values):.1f})\n"
        )


if __name__ == "__main__":
    main()
