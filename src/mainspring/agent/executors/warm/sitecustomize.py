"""What an interpreter runs that is started before its instant: import what it was told to, then wait at the gate.

Python imports a module of this name before it looks at its command line, so what comes after is Python's own doing:
sys.argv, sys.path[0], __main__, tracebacks and exit codes are those of `python script args`. Runs in a process
of the job's, so it imports nothing of ours, and leaves nothing of ours behind.
Next: agent/executors/prewarm.py, which opens the gate
"""

import os
import sys

HERE = os.path.dirname(__file__)


def leave_no_trace() -> None:
    """As if we had never been on the path."""
    sys.path.remove(HERE)
    sys.path_importer_cache.pop(HERE, None)
    theirs = os.environ["PYTHONPATH"].removeprefix(HERE).removeprefix(os.pathsep)
    if theirs:
        os.environ["PYTHONPATH"] = theirs
    else:
        del os.environ["PYTHONPATH"]
    del sys.modules[__name__]


def place_of_script() -> list[str]:
    """What Python will put in front of sys.path, unless told not to."""
    if sys.flags.safe_path:
        return []
    script = sys.orig_argv[1]
    if script == "-m":
        return [os.getcwd()]
    return [script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))]


def import_ahead(modules: list[str]) -> None:
    place = place_of_script()
    sys.path[:0] = place
    for module in modules:
        try:
            __import__(module)
        except BaseException:  # the script will meet it too, and tell of it in its own way
            continue
    del sys.path[: len(place)]
    if sys.orig_argv[1] == "-m":
        __import__("runpy")


def wait(gate: int) -> None:
    if not os.read(gate, 1):  # closed unopened: the run was called off, or the agent is gone
        os._exit(0)
    os.close(gate)


gate = int(os.environ.pop("MAINSPRING_GATE"))
modules = os.environ.pop("MAINSPRING_WARM").split()
leave_no_trace()
try:
    __import__("sitecustomize")  # the one of the system, if there is one; Python knows what to make of it if not
finally:
    import_ahead(modules)
    wait(gate)
