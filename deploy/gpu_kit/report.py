"""The results of a run as files: at most eight, at most 4 MiB, without names of the machine."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.gpu_kit.result import Result, Verdict

MOST_FILES: Final = 8
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_LOG_BYTES: Final = 256 * 1024
LOG: Final = "programs.log"

_UUID: Final = re.compile(
    r"(GPU|MIG)-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.IGNORECASE
)


class Report(msgspec.Struct, frozen=True):
    """What a run has found.

    Attributes:
        model, driver: the first GPU's name and the driver's version.
        date: the day of the run, in UTC.
        version: of vgpu.
        python: that has run the kit.
        quick: whether its figures mean nothing.
        complete: whether all checks were begun.
        seconds: how long it took.
        status: the exit status.
        facts: of the machine.
        results: all comparisons, in their order.
    """

    model: str
    driver: str
    date: str
    version: str
    python: str
    quick: bool
    complete: bool
    seconds: float
    status: int
    facts: Mapping[str, Any]
    results: tuple[Result, ...]


def folder_name(report: Report) -> str:
    """The name of the results' folder in ``tests/golden/real-driver``."""
    model = re.sub(r"[^a-z0-9]+", "-", report.model.lower()).strip("-")
    return f"{model}-{report.driver}"


def summary(report: Report) -> str:
    """The report as text: a line for each result that did not pass, and the numbers of all."""
    counts = {
        verdict: sum(result.verdict is verdict for result in report.results) for verdict in Verdict
    }
    lines = [
        f"{report.model}, driver {report.driver}, vgpu {report.version}, {report.date}",
        ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()),
        *(_line(result) for result in report.results if result.verdict is Verdict.FAILED),
        *_grouped(result for result in report.results if result.verdict is Verdict.NOT_RUN),
    ]
    return "\n".join(lines) + "\n"


def _grouped(results: Iterable[Result]) -> list[str]:
    """A line for each reason why something was not run."""
    names: dict[str, list[str]] = {}
    for result in results:
        names.setdefault(result.reason, []).append(result.name)
    return [
        f"not run: {group[0]}{f' and {len(group) - 1} more' if len(group) > 1 else ''}: {reason}"
        for reason, group in names.items()
    ]


def _line(result: Result) -> str:
    tolerance = "" if result.tolerance is None else f" ± {result.tolerance:g}"
    unit = f" {result.unit}" if result.unit else ""
    text = f"failed: {result.name}: expected {result.expected}{tolerance}, seen {result.seen}{unit}"
    return f"{text}: {result.reason}" if result.reason else text


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """The text with other UUIDs of GPUs, numbered as they come, and without these names."""
    numbers: dict[str, int] = {}

    def replacement(match: re.Match[str]) -> str:
        number = numbers.setdefault(match[2].lower(), len(numbers))
        return f"{match[1]}-00000000-0000-4000-8000-{number:012x}"

    text = _UUID.sub(replacement, text)
    for name, stand_in in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", stand_in, text)
    return text


def files(report: Report, kept: Mapping[str, str], log: str) -> dict[str, str]:
    """All files of the results, by name, with what no other may read still in them."""
    timings = {
        "call_microseconds": report.facts.get("call_microseconds", {}),
        "cost": report.facts.get("cost", {}),
        "events": report.facts.get("events", {}),
    }
    facts = {name: value for name, value in report.facts.items() if name not in timings}
    lean = msgspec.structs.replace(report, facts=facts)
    return {
        "report.json": _json(lean),
        "report.txt": summary(report),
        "timings.json": _json(timings),
        **kept,
        LOG: log[-MOST_LOG_BYTES:],
    }


def write(folder: Path, texts: Mapping[str, str], names: Mapping[str, str]) -> list[Path]:
    """Write the files, without names of the machine. Raises OSError, ValueError.

    UUIDs have the same stand-in in all files.
    """
    divider = "\n\x00\n"
    whole = anonymous(divider.join(texts.values()), names)
    contents = dict(zip(texts, whole.split(divider), strict=True))
    if len(contents) > MOST_FILES:
        raise ValueError(f"{len(contents)} files are more than {MOST_FILES}")
    if sum(len(text.encode()) for text in contents.values()) > MOST_BYTES:
        raise ValueError(f"the results have more than {MOST_BYTES} bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text)
    return [folder / name for name in contents]


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"
