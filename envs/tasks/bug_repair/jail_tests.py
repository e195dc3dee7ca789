"""Runs in the jail: the test functions of every ``tests/test_*.py``, and says how they went.

The last line written is MARK and then ``passed`` or ``failed: REASON``. Code under test could write such a line
itself; it would only mislead the agent that wrote it, since the verdict never reads this output.
"""

import os
import sys

MARK = "result: "
sys.path.insert(0, os.getcwd())
channel = os.dup(1)
quiet = os.open("/dev/null", os.O_WRONLY)
os.dup2(quiet, 1)
os.dup2(quiet, 2)


def say(text: str) -> None:
    os.write(channel, (MARK + text.replace("\n", " ")).encode("utf-8", "replace"))
    os._exit(0)


def run_all() -> None:
    folder = "tests"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    num_tests = 0
    for name in names:
        if not (name.startswith("test_") and name.endswith(".py")):
            continue
        with open(folder + "/" + name) as file:
            namespace: dict[str, object] = {"__name__": name[:-3], "__file__": folder + "/" + name}
            exec(compile(file.read(), name, "exec"), namespace)
        for key, test in list(namespace.items()):
            if key.startswith("test_") and callable(test):
                num_tests += 1
                test()
    say("passed" if num_tests else "failed: no tests")


try:
    run_all()
except AssertionError as error:
    say("failed: " + (str(error) or "an assertion"))
except BaseException as error:  # noqa: BLE001  (whatever the code under test does is a result)
    say("failed: " + type(error).__name__ + ": " + str(error))
