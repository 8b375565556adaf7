"""What a node has in Volcano's and HAMi's annotations: its GPUs, heartbeat, locks.

The plugin registers the GPUs in one annotation. A second one has the heartbeat of plugin and
scheduler (Volcano up to 1.15, HAMi), and the scheduler may lock the node in a third one while a
pod is being served.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Device, is_device_name
from vgpu.model.names import PodRef
from vgpu.model.objects import Node
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import ClaimError, Handshake, HandshakeState, NodeLock
from vgpu.schemes.text import number
from vgpu.schemes.volcano.key_set import HAMI_CORE, SPLIT_COUNT, KeySet
from vgpu.schemes.volcano.text import (
    BOOLEANS,
    MOST,
    instant,
    moment,
    stamp,
)

VENDOR: Final = "NVIDIA-"
"""In front of a GPU's model in its registered type."""

OUR_PLUGIN: Final = "vgpu"
"""What our plugin writes as ``plugin`` of a GPU. HAMi's readers ignore fields that they do not know
(``UnMarshalNodeDevices`` of pkg/device/devices.go), and HAMi's plugin writes the register when it
starts (``RegisterInAnnotation`` of nvinternal/plugin/register.go, v2.10.0): the field is gone."""

_REMEMBERED: Final = 8
"""Number of nodes whose registered GPUs are remembered; an annotation has at most 256 KiB."""

_ROWS: Final = 1024
"""Number of different texts of columns that are remembered, each of at most :data:`_LONGEST`."""

_LONGEST: Final = 256
"""Maximum number of characters of the columns that are remembered."""


class Registration(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "uuid": "id",
        "slots": "count",
        "memory": "devmem",
        "cores": "devcore",
        "healthy": "health",
    },
):
    """A GPU as its plugin registers it; renamed and with zeros left out it is HAMi's JSON.

    Attributes:
        uuid: its identity.
        index: its number on the node; None if unknown.
        slots: how many containers may share it.
        memory: in units (Volcano) or MiB (HAMi).
        cores: percent to share.
        type: ``NVIDIA-`` and the model.
        numa: its NUMA node.
        mode: how it is shared, hami-core or mig.
        healthy: whether new shares may go there.
        plugin: :data:`OUR_PLUGIN`, "" for an original's; in JSON only.
    """

    uuid: str = ""
    index: int | None = None
    slots: int = 0
    memory: int = 0
    cores: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    healthy: bool = False
    plugin: str = ""


_WORD = re.compile("[^,;:\x00-\x1f\x7f\ud800-\udfff]{0,128}")

_JSON = msgspec.json.Decoder(tuple[Registration, ...])


def _int32(text: str) -> int | None:
    """A whole number of 0 to :data:`MOST`."""
    return number(text, MOST)


def _is_word(text: str) -> bool:
    """Whether it can stand between separators, as a GPU's type and mode do."""
    return _WORD.fullmatch(text) is not None


def _numa(text: str) -> int | None:
    value = _int32(text.removeprefix("-"))
    return -value if value is not None and text.startswith("-") else value


def _word_cell(text: str) -> str | None:
    return text if _is_word(text) else None


_COLUMNS: Final[dict[str, Callable[[str], object]]] = {
    "index": _int32,
    "slots": _int32,
    "memory": _int32,
    "cores": _int32,
    "type": _word_cell,
    "numa": _numa,
    "mode": _word_cell,
    "healthy": BOOLEANS.get,
}
"""How each column behind a GPU's UUID is read; None is a malformed text."""


# ---------------------------------------------------------------- GPUs


def registrations(node: Node, key_set: KeySet) -> tuple[Registration, ...]:
    """The GPUs in the node's annotation, of any age of it; () without one. Raises ClaimError."""
    text = node.annotations.get(key_set.register, "")
    return _registrations(text, key_set, node.name) if text else ()


@lru_cache(maxsize=_REMEMBERED)
def _registrations(text: str, key_set: KeySet, node_name: str) -> tuple[Registration, ...]:
    """Several readers ask for the same node in turn: its GPUs, their mode, their traits."""
    object_name = f"node {node_name}"
    read = _from_json if text.startswith("[") else _from_columns
    gpus = read(text, key_set, object_name)
    uuids: set[str] = set()
    for gpu in gpus:
        flaw = "twice the same GPU" if gpu.uuid in uuids else _flaw(gpu)
        if flaw:
            raise ClaimError(object_name, key_set.register, text, f"{gpu.uuid[:40]!r}: {flaw}")
        uuids.add(gpu.uuid)
    return gpus


def registration(
    gpu_registrations: Iterable[Registration], key_set: KeySet, columns: int = 0
) -> str:
    """The annotation's text: in its newest form, or in the older one with that many columns.

    Raises ClaimError for what the form cannot express.
    """
    gpus = tuple(gpu_registrations)
    for gpu in gpus:
        if flaw := _flaw(gpu):
            raise ClaimError("registration", key_set.register, gpu.uuid, flaw)
    if key_set.json and not columns:
        return msgspec.json.encode(gpus).decode()
    names = key_set.columns[: columns or None]
    return "".join(",".join(_cell(gpu, name, key_set) for name in names) + ":" for gpu in gpus)


def _from_json(text: str, key_set: KeySet, object_name: str) -> tuple[Registration, ...]:
    try:
        gpus = _JSON.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClaimError(object_name, key_set.register, text, str(error)) from error
    # Go leaves out zeros.
    return tuple(structs.replace(gpu, index=gpu.index or 0) for gpu in gpus)


def _from_columns(text: str, key_set: KeySet, object_name: str) -> tuple[Registration, ...]:
    """``<column>,…:<column>,…:``; columns beyond the known ones are ignored."""
    gpus = []
    for part in filter(None, text.split(":")):
        uuid, _, rest = part.partition(",")
        # All GPUs of a model have few texts behind their UUIDs.
        read = _columns if len(rest) <= _LONGEST else _columns.__wrapped__
        gpu, flaw = read(rest, key_set.columns, key_set.least_columns)
        if not flaw and not _is_word(uuid):
            flaw = f"{key_set.columns[0]} is {uuid[:40]!r}"
        if flaw:
            raise ClaimError(object_name, key_set.register, part, flaw)
        gpus.append(structs.replace(gpu, uuid=uuid))
    return tuple(gpus)


@lru_cache(maxsize=_ROWS)
def _columns(text: str, names: tuple[str, ...], least: int) -> tuple[Registration, str]:
    """A GPU by its columns behind the UUID, which is the first of the names; what is wrong."""
    cells = text.split(",") if text else []
    if len(cells) + 1 < least:
        return Registration(), f"{len(cells) + 1} columns"
    values: dict[str, Any] = {"cores": WHOLE_DEVICE_PERCENT, "mode": HAMI_CORE}
    for column, cell in zip(names[1:], cells, strict=False):
        values[column] = _COLUMNS[column](cell)
        if values[column] is None:
            return Registration(), f"{column} is {cell[:40]!r}"
    return Registration(**values), ""


def _flaw(gpu: Registration) -> str:
    """What the annotation, in either form, cannot express of the GPU; "" if nothing."""
    numbers = (gpu.index or 0, gpu.slots, gpu.memory, gpu.cores, gpu.numa + 1)
    if min(numbers) < 0 or max(numbers) > MOST:
        return f"a number outside 0..{MOST}"
    if not is_device_name(gpu.uuid):
        return "not a GPU's UUID"
    return "" if _is_word(gpu.type) and _is_word(gpu.mode) else "not a type and a mode"


def _cell(gpu: Registration, column: str, key_set: KeySet) -> str:
    value = getattr(gpu, column)
    if value is None:
        raise ClaimError("registration", key_set.register, gpu.uuid, f"{column} is missing")
    return str(value).lower() if isinstance(value, bool) else str(value)


def devices(gpu_registrations: Iterable[Registration], unit: int) -> tuple[Device, ...]:
    """The registered GPUs as devices; ``unit`` is the bytes of one unit of memory."""
    return tuple(
        Device(
            uuid=gpu.uuid,
            index=gpu.index,
            memory_bytes=gpu.memory * unit,
            cores_milli=gpu.cores * MILLI_PER_PERCENT,
            slots=gpu.slots,
            healthy=gpu.healthy,
            model=gpu.type.removeprefix(VENDOR),
        )
        for gpu in gpu_registrations
    )


PAIR_SCORES: Final = "hami.io/node-nvidia-score"
"""HAMi's annotation of a node: how well each pair of its GPUs is connected (NVLink, PCIe)."""


class PairScores(msgspec.Struct, frozen=True):
    """The scores of a GPU's connections to others, by their UUIDs; more is better."""

    uuid: str = ""
    score: dict[str, int] = {}


_PAIR_SCORES = msgspec.json.Decoder(tuple[PairScores, ...])


def pair_scores(node: Node) -> dict[str, dict[str, int]]:
    """The scores of all GPUs' connections, by UUID; none where they cannot be read.

    They are a preference only, so an annotation that cannot be read keeps no pod from the node.
    """
    text = node.annotations.get(PAIR_SCORES, "")
    try:
        scores = _PAIR_SCORES.decode(text.encode(errors="replace")) if text else ()
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {each.uuid: each.score for each in scores}


def is_of_original_plugin(node: Node, key_set: KeySet) -> bool:
    """Whether another plugin than ours has registered the node's GPUs; only JSON shows it.

    False where the register cannot be read: that is no evidence.
    """
    try:
        gpus = registrations(node, key_set) if key_set.json else ()
    except ClaimError:
        return False
    return any(gpu.plugin != OUR_PLUGIN for gpu in gpus)


def registered(device: Device, unit: int, mode: str = HAMI_CORE, numa: int = 0) -> Registration:
    """A device as our plugin registers it; memory is rounded down to whole units."""
    return Registration(
        uuid=device.uuid,
        index=device.index,
        slots=SPLIT_COUNT if device.slots is None else device.slots,
        memory=(device.memory_bytes or 0) // unit,
        cores=device.cores_milli // MILLI_PER_PERCENT,
        type=VENDOR + device.model,
        numa=numa,
        mode=mode,
        healthy=device.healthy,
        plugin=OUR_PLUGIN,
    )


# ---------------------------------------------------------------- heartbeat and locks

_STATES: Final = {
    "Reported": HandshakeState.REPORTED,
    "Requesting": HandshakeState.REQUESTING,
    "Deleted": HandshakeState.DELETED,
}
_RFC3339: Final = "%Y-%m-%dT%H:%M:%SZ"


def handshake(node: Node, key_set: KeySet) -> Handshake | None:
    """The last heartbeat; None without one. Raises ClaimError for an unknown state.

    Its time is None if it cannot be read. The scheduler writes local time without a zone; it is
    read as UTC, in which schedulers run.
    """
    for key in key_set.handshake:
        text = node.annotations.get(key)
        if text is not None:
            name = next((state for state in _STATES if text.startswith(state)), None)
            if name is None:
                raise ClaimError(f"node {node.name}", key, text, "not a handshake")
            seconds = stamp(text.removeprefix(name).removeprefix("_").removeprefix(" "))
            return Handshake(key, _STATES[name], seconds)
    return None


def handshake_text(state: HandshakeState, seconds: float, key_set: KeySet) -> str:
    """A heartbeat at a whole unix second, as its side writes it."""
    name = next(name for name, meaning in _STATES.items() if meaning is state)
    if state is HandshakeState.REPORTED:
        return f"{name} {moment(seconds):%Y-%m-%d %H:%M:%S +0000 UTC}"
    return f"{name}_{moment(seconds):{key_set.stamp}}"


def locks(node: Node, key_set: KeySet) -> tuple[NodeLock, ...]:
    """The locks in force, readable or not.

    Volcano's is a time and does not name its owner; HAMi's is time, namespace and pod.
    """
    return tuple(
        _lock(key, node.annotations[key]) for key in key_set.locks if key in node.annotations
    )


def lock_text(since: float, owner: PodRef | None) -> str:
    """A lock taken at a whole unix second; with an owner in HAMi's form."""
    time = f"{moment(since):{_RFC3339}}"
    return f"{time},{owner.namespace},{owner.name}" if owner else time


def _lock(key: str, text: str) -> NodeLock:
    time, *owner = text.split(",", 3)
    named = (owner[0], owner[1]) if len(owner) == 2 and all(owner) else None
    return NodeLock(key, text, instant(time), named)
