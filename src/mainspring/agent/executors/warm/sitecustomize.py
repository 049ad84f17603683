"""Prewarmed interpreter: import the modules of the job, then wait on the start pipe.

Python imports a module of this name before it looks at its command line, so everything after it is plain Python:
sys.argv, sys.path[0], __main__, tracebacks and exit codes are those of `python script args`. Runs in the job's process:
it imports nothing of Mainspring and leaves no trace of itself.
Next: agent/executors/process.py
"""

import os
import sys

HERE = os.path.dirname(__file__)


def leave_no_trace() -> None:
    """Remove this directory from the path, and this module from sys.modules."""
    sys.path.remove(HERE)
    sys.path_importer_cache.pop(HERE, None)
    theirs = os.environ["PYTHONPATH"].removeprefix(HERE).removeprefix(os.pathsep)
    if theirs:
        os.environ["PYTHONPATH"] = theirs
    else:
        del os.environ["PYTHONPATH"]
    del sys.modules[__name__]


def place_of_script() -> list[str]:
    """What Python will put in front of sys.path, unless -P is given."""
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
        except BaseException:  # the script will meet it too, and report it in its own way
            continue
    del sys.path[: len(place)]
    if sys.orig_argv[1] == "-m":
        __import__("runpy")


def wait(start_pipe: int) -> None:
    if not os.read(start_pipe, 1):  # closed without a byte: the run was discarded, or the agent has exited
        os._exit(0)
    os.close(start_pipe)


start_pipe = int(os.environ.pop("MAINSPRING_START_PIPE"))
modules = os.environ.pop("MAINSPRING_WARM").split()
leave_no_trace()
try:
    __import__("sitecustomize")  # the system's, if there is one; Python handles the ImportError if not
finally:
    import_ahead(modules)
    wait(start_pipe)
