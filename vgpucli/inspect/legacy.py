"""What ``kubectl inspect gpushare`` prints, and with ``-d``, byte for byte.

The original is gpushare-device-plugin's ``cmd/inspect``: a node's memory is what is allocatable,
its GPUs are all of the average size, a pod is on the GPU that its annotations name or else
pending, and numbers are in the plugin's units, whose name is guessed. Only the order of nodes and
pods, random in the original, is by name. The ledger has the correct values.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.printable_text import printable
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gpushare.annotations import ALLOCATION, INDEX
from vgpu.schemes.gpushare.node import MOST_GPUS
from vgpu.schemes.registry import names_of
from vgpucli.tabwriter import align

_PENDING: Final = -1  # the GPU of a pod whose annotations name none
_MOST_GIB = 100  # a GPU of more units is assumed to be counted in MiB
_SUMMARY_DASHES = 20  # more than the first node's row has bytes
_DETAIL_DASHES = 10  # more than the rows of the first node's pods have bytes
_IN_CLUSTER = "Allocated/Total GPU Memory In Cluster:"

_DECIMAL = re.compile(r"([+-]?)0*([0-9]{1,19})")
_MOST_INT64 = 2**63 - 1
_Amount = Annotated[int, msgspec.Meta(ge=-_MOST_INT64 - 1, le=_MOST_INT64)]
_BY_CONTAINER = msgspec.json.Decoder(dict[str, dict[str, _Amount | None] | None] | None)


class _Usage(msgspec.Struct, frozen=True):
    """A node as the original shows it, in units of memory.

    Attributes:
        node: the node.
        total: the memory of all GPUs.
        count: number of GPUs.
        rows: the pods that request memory, by name, each with the values of its row by column;
            the column after the last GPU's is that of pending memory.
        used: by GPU, for all that exist or that a pod names, whatever the number.
    """

    node: Node
    total: int
    count: int
    rows: tuple[tuple[Pod, Mapping[int, int]], ...]
    used: Mapping[int, int]

    @property
    def gpu_total(self) -> int:
        return self.total // self.count if self.count else 0

    @property
    def has_pending(self) -> bool:
        return _PENDING in self.used

    @property
    def address(self) -> str:
        return self.node.address or "unknown"


def summary(nodes: Iterable[Node], pods: Iterable[Pod]) -> str:
    """One row for each node: used and total of every GPU and of the node. Raises ClaimError."""
    usages = _usages(nodes, pods)
    gpus = range(max((usage.count for usage in usages), default=0))
    pending = any(usage.has_pending for usage in usages)
    header = ["NAME", "IPADDRESS", *(f"GPU{gpu}(Allocated/Total)" for gpu in gpus)]
    header += ["PENDING(Allocated)"] if pending else []
    rows, cluster_used = [], 0
    for usage in usages:
        shown = [gpu for gpu in (*gpus, _PENDING) if gpu in usage.used]
        used = sum(usage.used[gpu] for gpu in shown)
        cells = [printable(usage.node.name), printable(usage.address)]
        cells += [
            f"{usage.used[gpu]}/{usage.gpu_total}" if gpu in usage.used else "0/0" for gpu in gpus
        ]
        if pending:
            cells.append(str(usage.used[_PENDING]) if usage.has_pending else "")
        rows.append("\t".join([*cells, f"{used}/{usage.total}\n"]))
        cluster_used += used
    dashes = len(rows[0].encode()) + _SUMMARY_DASHES if rows else 0
    header.append(f"GPU Memory({_unit_name(usages)})\n")
    cluster = _used_of_total(cluster_used, usages)
    return align(
        "".join(["\t".join(header), *rows, "-" * dashes, f"\n{_IN_CLUSTER}\n{cluster}\t\n"])
    )


def details(nodes: Iterable[Node], pods: Iterable[Pod]) -> str:
    """A table for each node, a row for each pod with its part of every GPU. Raises ClaimError."""
    usages = _usages(nodes, pods)
    text: list[str] = []
    cluster_used, dashes = 0, 0
    for usage in usages:
        columns = range(usage.count + usage.has_pending)
        header = ["NAME", "NAMESPACE", *(f"GPU{gpu}(Allocated)" for gpu in range(usage.count))]
        header += ["Pending(Allocated)"] if usage.has_pending else []
        rows = "".join(
            "\t".join([*_name(pod.ref), *(str(row.get(c, 0)) for c in columns)]) + "\t\n"
            for pod, row in usage.rows
        )
        dashes = dashes or len(rows.encode()) + _DETAIL_DASHES
        used = sum(usage.used.values())
        text += [
            f"\nNAME:\t{printable(usage.node.name)}\nIPADDRESS:\t{printable(usage.address)}\n\n",
            "\t".join(header) + "\t\n",
            rows,
            f"Allocated :\t{used} ({_percent(used, usage.total)}%)\t\n",
            f"Total :\t{usage.total} \t\n",
            "-" * dashes + "\n",
        ]
        cluster_used += used
    text.append(f"\n\n{_IN_CLUSTER}\t{_used_of_total(cluster_used, usages)}\t\n")
    return align("".join(text))


def _name(ref: PodRef) -> tuple[str, str]:
    return printable(ref.name), printable(ref.namespace)


def _usages(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[_Usage]:
    """The nodes that have memory to share, and their active pods, both by name."""
    by_node = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.ref.name, pod.ref.namespace, pod.ref.uid)):
        if not pod.terminal:
            by_node[pod.node].append(pod)
    return [
        _usage(node, by_node[node.name])
        for node in sorted(nodes, key=lambda node: node.name)
        if node.allocatable.get(names_of("gpushare").memory, 0) > 0
    ]


def _usage(node: Node, pods: Sequence[Pod]) -> _Usage:
    names = names_of("gpushare")
    count = node.allocatable.get(names.count, 0)
    if not 0 <= count <= MOST_GPUS:
        raise ClaimError(f"node {node.name}", names.count, str(count), "no such number of cards")
    used = dict.fromkeys(range(count), 0)
    rows: list[tuple[Pod, Mapping[int, int]]] = []
    for pod in pods:
        requested = sum(
            container.limits.get(names.memory, 0)
            for container in pod.containers
            if container.kind is ContainerKind.APP
        )
        if requested <= 0:
            continue
        row = by_gpu = _allocation(pod)
        if not by_gpu:
            gpu = _integer(pod.annotations.get(INDEX, ""))
            by_gpu = {_PENDING if gpu is None else gpu: requested}
            row = {count: requested} if _PENDING in by_gpu else by_gpu
        rows.append((pod, row))
        for gpu, units in by_gpu.items():
            used[gpu] = used.get(gpu, 0) + units
    return _Usage(node, node.allocatable[names.memory], count, tuple(rows), used)


def _allocation(pod: Pod) -> dict[int, int]:
    """Units by GPU in ACK's annotation; empty if anything in it is invalid.

    This is less strict than the scheme's codec, as Go reads JSON into a map: numbers with signs and
    leading zeros, the last of several equal keys, null for nothing.
    """
    try:
        by_container = _BY_CONTAINER.decode(
            pod.annotations.get(ALLOCATION, "").encode(errors="replace")
        )
    except (msgspec.DecodeError, RecursionError):
        return {}
    containers = {_integer(number): by_gpu or {} for number, by_gpu in (by_container or {}).items()}
    units: dict[int, int] = {}
    for by_gpu in containers.values():
        for text, amount in by_gpu.items():
            gpu = _integer(text)
            if gpu is None:
                return {}
            units[gpu] = units.get(gpu, 0) + (amount or 0)
    return {} if None in containers else units


def _integer(text: str) -> int | None:
    """What Go's ``strconv.Atoi`` makes of a text; None where it fails."""
    parts = _DECIMAL.fullmatch(text)
    if parts is None:
        return None
    number = int(parts[2]) * (-1 if parts[1] == "-" else 1)
    return number if -_MOST_INT64 - 1 <= number <= _MOST_INT64 else None


def _unit_name(usages: Iterable[_Usage]) -> str:
    """The unit by the first node that has GPUs, as the original guesses it."""
    for usage in usages:
        if usage.count:
            return "MiB" if usage.gpu_total > _MOST_GIB else "GiB"
    return ""


def _used_of_total(used: int, usages: Iterable[_Usage]) -> str:
    total = sum(usage.total for usage in usages)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    """Truncated after a division of floats: 29 of 100 are 28."""
    return int(used / total * 100) if total else 0
