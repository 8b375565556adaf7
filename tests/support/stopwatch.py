"""Runs a command and prints its wall time and the CPU seconds of all its descendants.

    python -m tests.support.stopwatch 'make test' '20 min' -- pytest tests
    make test: 14 min 2 s wall (bound: 20 min), 1500 s of CPU

``--beside='make cluster-tools'`` before the two dashes is another command, which runs beside the
first one and ends with it at the latest; of its output only errors are shown.

The bound is for whoever reads it: a busy machine takes longer, and no run fails for it.

A process whose parent has ended belongs to this one until it ends (``PR_SET_CHILD_SUBREAPER``), so
that daemons of the tests are counted too. The exit status is the command's.

    CPU seconds = user + system time of every descendant that has ended
"""

import contextlib
import ctypes
import os
import resource
import shlex
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""


def main(name: str, bound: str, command: list[str], beside: str = "") -> int:
    """Run ``command``; its exit status, or 128 + the number of the signal that ended it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    begun = time.monotonic()
    other = None
    if beside:
        other = subprocess.Popen(
            shlex.split(beside), stdout=subprocess.DEVNULL, start_new_session=True
        )
    child = subprocess.Popen(command)
    # A terminal's Ctrl-C reaches the child as well, which tears down in order: wait for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            break
    child.returncode = os.waitstatus_to_exitcode(status)
    if other:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(other.pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(other.pid, 0)
        other.returncode = 0  # waited for by the loop above or here
    minutes, seconds = divmod(round(time.monotonic() - begun), 60)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = round(used.ru_utime + used.ru_stime)
    print(f"{name}: {minutes} min {seconds} s wall (bound: {bound}), {cpu} s of CPU", flush=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    dashes = sys.argv.index("--")
    name, bound, *options = sys.argv[1:dashes]
    beside = "".join(option.removeprefix("--beside=") for option in options)
    sys.exit(main(name, bound, sys.argv[dashes + 1 :], beside))
