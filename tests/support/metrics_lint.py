"""What promtool does not check: our own rules for the family tables.

Own names are ``vgpu_`` and base units; compatibility sets keep the names they copy, so only the
rules about validity hold for them.
"""

import re
from collections.abc import Iterable, Iterator

from vgpu.metrics.family import Family, FamilyTable, MetricType

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
TARGET_LABELS = frozenset({"job", "instance", "hostname", "node"})
UNIT_SUFFIX = {
    "bytes": "bytes",
    "seconds": "seconds",
    "ratio": "ratio",
    "celsius": "celsius",
    "watts": "watts",
    "joules": "joules",
    "hertz": "hertz",
    "timestamp": "timestamp_seconds",
    "bytes per second": "bytes_per_second",
}
FOREIGN_UNITS = ("_mib", "_mb", "_kb", "_percent", "_mhz", "_khz", "_milliwatts", "_ms")


def lint(tables: Iterable[FamilyTable], prefix: str = "vgpu_") -> list[str]:
    """Every broken rule, in words; empty when all is well. ``prefix`` "" lints a foreign set."""
    tables = list(tables)
    complaints = list(_validity(tables))
    if prefix:
        for table in tables:
            for family in table.families:
                complaints.extend(_conventions(table, family, prefix))
    return complaints


def _validity(tables: list[FamilyTable]) -> Iterator[str]:
    seen: set[str] = set()
    for table in tables:
        for family in table.families:
            name = family.name
            base = name.removesuffix("_total") if family.kind is MetricType.COUNTER else name
            if base in seen:
                yield f"{name}: declared twice"
            seen.add(base)
            if not NAME.fullmatch(name):
                yield f"{name}: not a metric name"
            if not family.help or not family.help.endswith("."):
                yield f"{name}: help must be a sentence"
            if family.kind is MetricType.COUNTER and not name.endswith("_total"):
                yield f"{name}: a counter ends in _total"
            labels = (*table.labels, *family.extra)
            if len(set(labels)) != len(labels):
                yield f"{name}: a label twice"
            for label in labels:
                if not LABEL.fullmatch(label) or label.startswith("__"):
                    yield f"{name}: {label!r} is no label name"


def _conventions(table: FamilyTable, family: Family, prefix: str) -> Iterator[str]:
    name = family.name
    if not name.startswith((prefix, "process_")):
        yield f"{name}: own names begin with {prefix}"
    if family.kind is MetricType.GAUGE and name.endswith("_total"):
        yield f"{name}: a gauge does not end in _total"
    if any(unit in name for unit in FOREIGN_UNITS):
        yield f"{name}: base units only"
    base = name.removesuffix("_total")
    if family.unit:
        suffix = UNIT_SUFFIX.get(family.unit)
        if suffix is None:
            yield f"{name}: unknown unit {family.unit!r}"
        elif not base.endswith(suffix):
            yield f"{name}: with unit {family.unit!r} it ends in _{suffix}"
    else:
        for suffix in UNIT_SUFFIX.values():
            if base.endswith("_" + suffix):
                yield f"{name}: declare its unit"
    for label in (*table.labels, *family.extra):
        if label in TARGET_LABELS and not (label == "node" and base.endswith("_info")):
            yield f"{name}: {label!r} belongs to the scrape target"
        if label != label.lower():
            yield f"{name}: label {label!r} is not lower case"
