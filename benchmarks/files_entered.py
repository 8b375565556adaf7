"""How many files of the product one operation enters, over the tests of that operation.

    python benchmarks/files_entered.py [filter] [allocate] [sample] [sharepod] [--list]

A stranger who follows an operation through the code reads so many files. A file is entered when a
function of it is called between the operation's call and its return, in the thread that serves it;
importing is not entering, and the library's files count like the program's. The calls are those of
tests that run the real parts in one process. A test's first calls fill what later ones find, so
the largest number over all calls is the figure; ``median`` is that of the calls. The examples of
the tests are those of ``make test``, the same in each run, and pods of each sharing system are
filtered on nodes of each, so that no figure depends on what is drawn.

Nothing is timed: the profiler makes each call many times slower.
"""

import argparse
import functools
import importlib
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import pytest  # noqa: E402

from vgpu.program.own_packages import PACKAGES  # noqa: E402


class Operation(NamedTuple):
    """One operation, and the tests that have it done."""

    module: str
    owner: str
    method: str
    tests: tuple[str, ...]
    most: int
    """Maximum number of files that one call is to enter; a larger one is a failure."""


OPERATIONS: Final[Mapping[str, Operation]] = {
    "filter": Operation(
        "scheduler.verbs.extender",
        "Extender",
        "filter",
        (
            "tests/scheduler/test_verbs.py",
            "tests/scheduler/test_worked_examples.py",
            "tests/scheduler/test_mixed_clusters.py",
        ),
        35,
    ),
    "allocate": Operation(
        "deviceplugin.allocate.allocator",
        "PodAllocator",
        "allocate",
        ("tests/deviceplugin/test_allocator.py",),
        28,
    ),
    "sample": Operation(
        "exporter.sampler", "Sampler", "sample", ("tests/exporter/test_sampler.py",), 85
    ),
    "sharepod": Operation(
        "kubeshare.controller",
        "SharePodControllers",
        "_sync",
        ("tests/kubeshare/test_idle_pool.py",),
        13,
    ),
}
"""Each name on the command line."""

_OPTIONS: Final = ("-q", "--no-header", "--hypothesis-profile=ci", "-p", "no:xdist")

_OWN: Final = tuple(f"{ROOT / package}/" for package in PACKAGES if package != "simulator")


def recorded(function: Callable[..., Any], calls: list[frozenset[str]]) -> Callable[..., Any]:
    """The function; each call appends the files that it has entered to ``calls``."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        files = set()

        def note(frame: Any, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name != "<module>":
                files.add(frame.f_code.co_filename)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return function(*args, **named)
        finally:
            sys.setprofile(before)
            own = (file for file in files if file.startswith(_OWN))
            calls.append(frozenset(str(Path(file).relative_to(ROOT)) for file in own))

    return call


def calls_of(operation: Operation) -> list[frozenset[str]]:
    """The files of each call, over the operation's tests. Raises SystemExit if a test fails."""
    owner = getattr(importlib.import_module(operation.module), operation.owner)
    original = getattr(owner, operation.method)
    calls: list[frozenset[str]] = []
    setattr(owner, operation.method, recorded(original, calls))
    try:
        tests = [str(ROOT / test) for test in operation.tests]
        status = pytest.main([*_OPTIONS, *tests])
    finally:
        setattr(owner, operation.method, original)
    if status:
        raise SystemExit(f"the tests of {operation.owner}.{operation.method} have failed")
    if not calls:
        raise SystemExit(f"no test has called {operation.owner}.{operation.method}")
    return calls


def main() -> int:
    """Print the figures; the status is 1 where a call enters more files than it is to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "operations", nargs="*", help=f"{', '.join(OPERATIONS)}; all of them without one"
    )
    parser.add_argument("--list", action="store_true", help="print the files of the largest call")
    args = parser.parse_args()
    lines, is_kept = [], True
    if unknown := [name for name in args.operations if name not in OPERATIONS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(OPERATIONS)}")
    for name in args.operations or OPERATIONS:
        operation = OPERATIONS[name]
        calls = calls_of(operation)
        largest = max(calls, key=len)
        is_kept = is_kept and len(largest) <= operation.most
        median = statistics.median(map(len, calls))
        lines.append(
            f"{name}: {len(largest)} files (at most {operation.most}),"
            f" median {median:g} of {len(calls)} calls"
        )
        if args.list:
            lines += [f"    {file}" for file in sorted(largest)]
    print("\n".join(lines))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
