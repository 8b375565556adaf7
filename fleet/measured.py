"""What pods use on each GPU, as far as exporters' sums of whole pods show it. Pure.

    used(g) = sum of used(p) for p in pods(g), if there are some,
              and each of them is measured and on g alone

Exporters are read as ``vgpu inspect --by`` reads them: by pod. A pod on several GPUs makes what is
used of each of them unknown.
"""

from collections.abc import Callable, Mapping

import click
import msgspec

from vgpu.quota.resources import CORES, MEMORY
from vgpucli.group_usage import MeasuredUse
from vgpucli.inspect.document import DeviceDocument, NodeDocument
from vgpucli.inspect.groups import UseDocument
from vgpucli.measured_use import Measured


def tolerant(measure: Callable[[str], Measured], source: str) -> Callable[[], Measured]:
    """What all pods use; a server that does not answer is a note, since the cluster was read."""

    def read() -> Measured:
        try:
            return measure("")
        except click.ClickException as error:
            return Measured({}, (error.message,), source)

    return read


def used_of_gpus(
    nodes: list[NodeDocument], measured: Mapping[str, MeasuredUse]
) -> dict[tuple[str, str], int]:
    """The used bytes by node and GPU; a GPU whose use is unknown is missing."""
    places: dict[str, set[tuple[str, str]]] = {}
    for node in nodes:
        for held in node.unplaced:
            places.setdefault(held.pod.uid, set()).add((node.name, ""))
        for device in node.devices:
            for held in device.holdings:
                places.setdefault(held.pod.uid, set()).add((node.name, known_as(device)))
    found = {}
    for node in nodes:
        for device in node.devices:
            pods = {held.pod.uid for held in device.holdings}
            uses = [measured[uid].used.get(MEMORY) for uid in pods if uid in measured]
            alone = all(len(places[uid]) == 1 for uid in pods)
            amounts = [amount for amount in uses if amount is not None]
            if pods and alone and len(amounts) == len(pods):
                found[node.name, known_as(device)] = sum(amounts)
    return found


def known_as(device: DeviceDocument) -> str:
    """By what the pages name a GPU."""
    return device.uuid or device.name


def use_document(use: MeasuredUse | None) -> UseDocument | None:
    """What one pod uses; None if it is not measured."""
    if use is None:
        return None
    amounts = (each.get(name) for name in (MEMORY, CORES) for each in (use.used, use.idle))
    return UseDocument(int(MEMORY in use.used), *amounts)


class MeasuredSource(msgspec.Struct, frozen=True, rename="camel"):
    """Who measured: a Prometheus by its name, or ``answered`` of ``asked`` exporters."""

    name: str
    asked: int
    answered: int
