"""Asks the driver everything, and prints the answers as JSON: a program of its own.

    python -m deploy.gpu_kit.driver_answers --repeat 200 -- nvidia-smi …

It is a process, since one process has one NVML, and a driver that hangs ends nobody else. The
status is 3, with one line, if no driver answers.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from deploy.gpu_kit.answers import (
    UTILIZATION,
    CallTimes,
    DriverAnswers,
    GpuAnswers,
    ListAnswer,
    QueryAnswer,
    all_queries,
    kept,
    read,
)
from deploy.gpu_kit.result import STATUS_NO_DRIVER
from vgpu.sources.nvml import NvmlBinding
from vgpu.sources.nvml_calls import UNSUPPORTED, CallError, Code
from vgpu.sources.nvml_device import PROCESS_LISTS
from vgpu.sources.nvml_queries import DRIVER_INFO, GPU_INFO, Info, Number, Query

SLOW_CALL_SECONDS = 0.01
"""A call that takes longer is repeated ten times less often."""


def measured(call: Callable[[], Any], repeat: int) -> tuple[Any, CallTimes]:
    """The first answer of a call, and how long it and later ones take. Raises CallError."""
    started = time.perf_counter()
    answer = call()
    first = time.perf_counter() - started
    later: list[float] = []
    for _ in range(repeat if first < SLOW_CALL_SECONDS else repeat // 10):
        started = time.perf_counter()
        try:
            call()
        except CallError:
            continue
        later.append(time.perf_counter() - started)
    later = later or [first]
    p99 = statistics.quantiles(later, n=100, method="inclusive")[98] if len(later) > 1 else later[0]
    return answer, CallTimes(
        first=round(first * 1e6, 1),
        p50=round(statistics.median(later) * 1e6, 1),
        p99=round(p99 * 1e6, 1),
        count=len(later),
    )


def answer_of(binding: NvmlBinding, handle: Any, query: Query) -> Any:
    """The driver's answer. Raises CallError."""
    if query.each is None:
        return binding.call(query.call, handle, *query.args)
    answers: list[Any] = []
    for value in query.each:
        try:
            answers.append(binding.call(query.call, handle, *query.args, value))
        except CallError as error:
            if answers and (error.code in UNSUPPORTED or error.code == Code.INVALID_ARGUMENT):
                break
            raise
    return answers


def ask(binding: NvmlBinding, handle: Any, query: Query, repeat: int) -> QueryAnswer:
    """One query with its answer or error."""
    each = query.each is not None
    try:
        answer, times = measured(lambda: answer_of(binding, handle, query), repeat)
    except CallError as error:
        return QueryAnswer(query.call, query.args, each, None, int(error.code), {})
    return QueryAnswer(query.call, query.args, each, kept(answer), 0, read(query, answer), times)


def ask_list(call: str, entries: Callable[[], Any], repeat: int) -> ListAnswer:
    """One list with its entries or error."""
    try:
        answer, times = measured(lambda: tuple(tuple(entry) for entry in entries()), repeat)
    except CallError as error:
        return ListAnswer(call, int(error.code))
    return ListAnswer(call, 0, answer, times)


def lists_of(binding: NvmlBinding, handle: Any, repeat: int = 0) -> tuple[ListAnswer, ...]:
    """The process lists and the utilisation samples of a GPU."""
    return (
        *(
            ask_list(name, lambda name=name: binding.processes(name, handle), repeat)  # type: ignore[misc]
            for name in PROCESS_LISTS
        ),
        ask_list(UTILIZATION, lambda: binding.utilization(handle, 0), repeat),
    )


def info_of(
    binding: NvmlBinding, info: Info, *handle: Any
) -> tuple[dict[str, str], dict[str, int]]:
    """Texts by key, and the errors of those that are missing."""
    texts: dict[str, str] = {}
    errors: dict[str, int] = {}
    for key, (call, pick) in info.items():
        try:
            texts[key] = binding.call(call, *handle, read=pick)
        except CallError as error:
            errors[key] = int(error.code)
    return texts, errors


def handles(binding: NvmlBinding) -> list[tuple[int, str, Any]]:
    """Index, UUID and handle of each GPU. Raises CallError."""
    found = []
    for index in range(binding.call("nvmlDeviceGetCount")):
        handle = binding.call("nvmlDeviceGetHandleByIndex", index)
        found.append((index, binding.call("nvmlDeviceGetUUID", handle), handle))
    return found


def answers(binding: NvmlBinding, repeat: int, between: Sequence[str]) -> DriverAnswers:
    """Everything; ``between`` is a program to run between two readings. Raises CallError."""
    binding.initialise()
    gpus = handles(binding)
    queries = tuple(all_queries())
    before = [[ask(binding, handle, query, 0) for query in queries] for _, _, handle in gpus]
    printed = ""
    if between:
        printed = subprocess.run(between, capture_output=True, text=True, check=False).stdout  # noqa: S603
    again = [_readings(binding, handle, queries) for _, _, handle in gpus]
    answered = []
    for position, (index, uuid, handle) in enumerate(gpus):
        texts, errors = info_of(binding, GPU_INFO, handle)
        asked = before[position]
        if repeat:
            timed = (ask(binding, handle, query, repeat) for query in queries)
            asked = [
                msgspec.structs.replace(
                    first,
                    times=later.times
                    and first.times
                    and msgspec.structs.replace(later.times, first=first.times.first),
                )
                for first, later in zip(asked, timed, strict=True)
            ]
        lists = lists_of(binding, handle, repeat)
        answered.append(
            GpuAnswers(index, uuid, texts, errors, tuple(asked), lists, again[position])
        )
    return DriverAnswers(info_of(binding, DRIVER_INFO)[0], tuple(answered), printed)


def _readings(binding: NvmlBinding, handle: Any, queries: Sequence[Query]) -> dict[str, Number]:
    merged: dict[str, Number] = {}
    for query in queries:
        for name, value in ask(binding, handle, query, 0).readings.items():
            merged.setdefault(name, value)
    return merged


@click.command()
@click.option("--repeat", default=0, help="How often each call is measured.")
@click.argument("between", nargs=-1, type=click.UNPROCESSED)
def main(repeat: int, between: tuple[str, ...]) -> None:
    """Print all answers; BETWEEN is a command to run between two readings."""
    try:
        found = answers(NvmlBinding(), repeat, between)
    except CallError as error:
        click.echo(f"no driver answers: {error}", err=True)
        sys.exit(STATUS_NO_DRIVER)
    click.echo(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
