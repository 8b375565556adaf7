"""What a real KAI Scheduler wrote, event by event (tests/golden/kai). It invents nothing.

    for moment in moments(): ...      # after each event
    objects = after("the_tenant_is_bound")

A step is a part of the story that was played beside KAI; its events are in the order in which etcd
got them.
"""

import json
import lzma
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from tests.support.environment import ROOT

FOLDER = ROOT / "tests" / "golden" / "kai"

STORY = "kai-0.17.0"
RACE = "kai-0.17.0-race"
HAMICORE = "kai-0.17.0-hamicore"
"""The names of the records."""

Object = dict[str, Any]
Key = tuple[str, str, str]


class Moment(NamedTuple):
    """The objects after an event, by kind, namespace and name."""

    step: str
    event: tuple[str, Object]
    objects: Mapping[Key, Object]
    is_last: bool
    """Whether it is the last event of its step."""


class NodeSeen(NamedTuple):
    """What was seen of a node at the end of a step."""

    checkpoint: Object
    """The kubelet's device checkpoint, parsed."""
    containers: Mapping[str, Mapping[str, Any]]
    """NAMESPACE/POD/CONTAINER -> its environment variables about GPUs, or lines of its log."""


@cache
def _record(name: str) -> tuple[Object, ...]:
    text = lzma.decompress((FOLDER / f"{name}.jsonl.xz").read_bytes())
    return tuple(map(json.loads, text.splitlines()))


def steps(record: str = STORY) -> list[str]:
    """The names of the steps, in their order."""
    return [entry["step"] for entry in _record(record)]


def key(obj: Object) -> Key:
    """The kind, namespace and name."""
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", ""), meta["name"]


def moments(record: str = STORY) -> Iterator[Moment]:
    """Each event with the objects after it; these are the same mapping, which changes."""
    objects: dict[Key, Object] = {}
    for entry in _record(record):
        for number, (kind, obj) in enumerate(entry["events"], 1):
            if kind == "DELETED":
                objects.pop(key(obj), None)
            else:
                objects[key(obj)] = obj
            is_last = number == len(entry["events"])
            yield Moment(entry["step"], (kind, obj), objects, is_last)


def after(step: str, *, without: frozenset[str] = frozenset(), record: str = STORY) -> list[Object]:
    """The objects at the end of a step, but those of some kinds. They are shared: never change one.

    Raises:
        KeyError: the record has no such step.
    """
    for moment in moments(record):
        if moment.step == step and moment.is_last:
            return [obj for obj in moment.objects.values() if obj["kind"] not in without]
    raise KeyError(step)


def seen(step: str, *, record: str = STORY) -> dict[str, NodeSeen]:
    """What was seen of the nodes with GPUs at the end of a step, by the name of the node."""
    (entry,) = (entry for entry in _record(record) if entry["step"] == step)
    return {
        node: NodeSeen(each["checkpoint"], each["containers"])
        for node, each in entry["seen"].items()
    }


def refused() -> list[tuple[Object, str]]:
    """Pods, and with which message KAI's webhook refused each; "" is not at all."""
    found = (each for entry in _record(STORY) for each in entry.get("refused", ()))
    return [(each["pod"], each["message"]) for each in found]
