"""Every query of the exporter's tables: its answer beside nvidia-smi's, its error, its time."""

import shutil
from collections.abc import Iterator

import msgspec

from deploy.gpu_kit import smi
from deploy.gpu_kit.answers import DriverAnswers, GpuAnswers, code_name, expected_error
from deploy.gpu_kit.kit import DRIVER_FILE, Kit
from deploy.gpu_kit.loads import LoadPlan
from deploy.gpu_kit.processes import KitError, module
from deploy.gpu_kit.result import Result, Verdict, at_most, holds, not_run

ASK_SECONDS = 35
P99_MICROSECONDS = 1_000_000
"""Maximum p99 of a call: a sample has ten seconds for all calls of all GPUs."""


def check(kit: Kit) -> Iterator[Result]:
    """See the module."""
    fields, why = _fields(kit)
    between = smi.query(fields) if fields else []
    repeat = max(1, kit.pace.repeat // len(kit.answers.gpus))
    program = module("deploy.gpu_kit.driver_answers", f"--repeat={repeat}", "--", *between)
    with kit.loads().running(LoadPlan(mib=64, busy=0.3)):
        printed = kit.processes.output(program, kit.log, seconds=ASK_SECONDS)
    answers = msgspec.json.decode(printed, type=DriverAnswers)
    kit.kept[DRIVER_FILE] = msgspec.json.format(printed.strip())
    rows = smi.parse(fields, answers.between)
    for gpu in answers.gpus:
        yield from _errors(gpu)
        yield from _times(kit, gpu)
        if not fields:
            yield not_run(f"queries/{gpu.index}/nvidia-smi", why)
        elif gpu.uuid not in rows:
            reason = "nvidia-smi printed no line for this GPU"
            yield Result(f"queries/{gpu.index}/nvidia-smi", Verdict.FAILED, reason=reason)
        else:
            yield from smi.compare(gpu, answers.driver, rows[gpu.uuid])


def _fields(kit: Kit) -> tuple[tuple[str, ...], str]:
    """The fields to ask nvidia-smi for; or none, and why."""
    if shutil.which("nvidia-smi") is None:
        return (), "nvidia-smi is not installed"
    try:
        text = kit.processes.output(["nvidia-smi", "--help-query-gpu"], kit.log, seconds=10)
    except KitError as error:
        return (), str(error)
    return smi.wanted(smi.known_fields(text)), ""


def _errors(gpu: GpuAnswers) -> Iterator[Result]:
    """Each call: an answer, or an error that means that the device has none."""
    expected = "an answer, or an error that means that there is none"
    for query in gpu.queries:
        seen = "an answer" if not query.error else code_name(query.error)
        title = f"queries/{gpu.index}/{query.key}"
        yield holds(title, expected, seen, true=expected_error(query.error))
    for answer in gpu.lists:
        seen = f"{len(answer.entries)} entries" if not answer.error else code_name(answer.error)
        fine = expected_error(answer.error) or "NOT_FOUND" in seen  # nothing was sampled
        yield holds(f"queries/{gpu.index}/{answer.call}", expected, seen, true=fine)
    for key, error in gpu.info_errors.items():
        title = f"queries/{gpu.index}/{key}"
        yield holds(title, expected, code_name(error), true=expected_error(error))


def _times(kit: Kit, gpu: GpuAnswers) -> Iterator[Result]:
    """The slowest call; every call's times are in driver.json and in timings.json."""
    timed = {query.key: query.times for query in gpu.queries if query.times is not None}
    timed |= {answer.call: answer.times for answer in gpu.lists if answer.times is not None}
    kit.facts.setdefault("call_microseconds", {})[str(gpu.index)] = timed
    if not timed:
        return
    slowest = max(timed, key=lambda name: timed[name].p99)
    title = f"queries/{gpu.index}/slowest call"
    if kit.pace.figures:
        yield at_most(title, P99_MICROSECONDS, timed[slowest].p99, f"µs ({slowest}, p99)")
    else:
        yield not_run(title, "a quick run measures no figures", slowest)
