"""HAMi-core's shared region: its six byte layouts, decoded from bytes and encoded to bytes.

The preloaded library keeps one file per container: a header with the devices and their limits,
1024 process slots, and a trailer. The offsets are those of the library's ``offsetof`` on x86-64
(little-endian, natural alignment) at the commits named in the table, and the file is one byte
longer than the struct. Every byte of it belongs to the tenant, so nothing decoded here is
trusted before it is checked.
"""

import contextlib
import functools
import re
import struct

import msgspec

from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import WHOLE_DEVICE_PERCENT

MAGIC = 19920718  # initialized_flag, written last
MAX_DEVICES = 16
MAX_PROCESSES = 1024
UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
PLAUSIBLE_BYTES = 2**53  # above it only underflows are found (they read as 1.8e19)
FULL_PERCENT = 100  # a process cannot keep a device busier than this


class Frame(msgspec.Struct, frozen=True):
    """The part of a layout that follows from the file size; offsets and sizes in bytes.

    ``versioned`` frames have version words behind the magic and ``last_kernel_time`` in the
    trailer. The trailer begins with ``proc_num``.
    """

    file_size: int
    versioned: bool
    device_num: int
    uuids: int
    memory_limits: int
    core_limits: int
    slots: int
    slot_size: int
    trailer: int
    trailer_size: int


class Layout(msgspec.Struct, frozen=True):
    """One layout: its frame, and the offsets inside a process slot.

    Attributes:
        id: the value of the label ``layout``.
        frame: header and trailer.
        version: major and minor, None in frames without version words.
        used: ``used[16]``, entries of ``used_stride`` bytes.
        util: ``device_util[16]``, entries of ``util_stride`` bytes; None where there is none.
        status: the status word.
        seqlock: the counter that is odd while the slot is written; None where there is none.
        twin_status: where the layout of the same size and version keeps its status word.
    """

    id: str
    frame: Frame
    version: tuple[int, int] | None
    used: int
    used_stride: int
    util: int | None
    util_stride: int
    status: int
    seqlock: int | None = None
    twin_status: int | None = None


# fmt: off
#            file_size  versioned  num  uuids  memory  cores  slots  slot     trailer  (size)
_P0 = Frame(   804_681, False,      48,    56,   1592,  1720,  1848,  784,    804_664, 16)
_V0 = Frame( 1_197_897, False,      48,    56,   1592,  1720,  1848, 1168,  1_197_880, 16)
_V1 = Frame( 2_008_953, True,       56,    64,   1600,  1728,  1856, 1960,  2_008_896, 56)
_V1C = Frame(2_008_985, True,       88,    96,   1632,  1760,  1888, 1960,  2_008_928, 56)

FRAMES = {frame.file_size: frame for frame in (_P0, _V0, _V1, _V1C)}

LAYOUTS = {layout.id: layout for layout in (
    #      id       frame  version  used      util        status  seqlock  twin
    Layout("p0",    _P0,   None,     8, 40,   None,  0,     776),              # 8b7cd78, 2024-01
    Layout("v0",    _V0,   None,     8, 40,    776, 24,    1160),              # 7a9c88b, 2024-04
    Layout("v1.1",  _V1,   (1, 1),   8, 64,   1160, 48,    1928,  None,  1936),  # 9b46404, 2024-08
    Layout("v1.1b", _V1,   (1, 1),  16, 64,   1168, 48,    1936,     8,  1928),  # 1988c5d, 2026-01
    Layout("v1.1c", _V1C,  (1, 1),  16, 64,   1168, 48,    1936,     8),       # e200da2, 2026-03
    Layout("v1.2",  _V1,   (1, 2),   8, 64,   1160, 48,    1928,  1936),       # b69b1ea, 2026-04
)}
# fmt: on

# V1.1b is the only layout without a size or version of its own; V1.1 is tried before it.
_V11, _V11B = LAYOUTS["v1.1"], LAYOUTS["v1.1b"]
_BY_WORDS = {
    (layout.frame.file_size, layout.version): layout
    for layout in LAYOUTS.values()
    if layout is not _V11B
}

_DEAD, _ACTIVE, _SUSPENDED = 0, 1, 2  # status; what the library writes
_STATUSES = frozenset((_DEAD, _ACTIVE, _SUSPENDED))
_ALIVE = frozenset((_ACTIVE, _SUSPENDED))

_WRAPPED = 2**64 - 1  # a counter that was 0 when the library subtracted 1

_HEAD = struct.Struct("<iII")  # magic, major, minor
_IDS = struct.Struct("<ii")  # pid, hostpid: where every slot begins
_INT = struct.Struct("<i")
_WORD = struct.Struct("<Q")
_TRAILER = struct.Struct("<iiii")  # proc_num, utilization_switch, recent_kernel, priority
_VERSIONED_TRAILER = struct.Struct("<iiiiQ")  # … and last_kernel_time

_HEX = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID = re.compile(rb"(?:GPU|MIG)-" + _HEX + rb"|MIG-GPU-" + _HEX + rb"/[0-9]{1,4}/[0-9]{1,4}")


def layout_for(size: int, major: int, minor: int, object_name: str = "region") -> Layout:
    """The layout of a file of ``size`` bytes; the version words count only in sizes that have them.

    V1.1 stands for V1.1b too: only the slots distinguish those.

    Raises:
        SourceError: UNKNOWN_LAYOUT.
    """
    frame = FRAMES.get(size)
    if frame is None:
        raise SourceError(Reason.UNKNOWN_LAYOUT, object_name, f"{size} bytes")
    layout = _BY_WORDS.get((size, (major, minor) if frame.versioned else None))
    if layout is None:
        raise SourceError(
            Reason.UNKNOWN_LAYOUT, object_name, f"{size} bytes, version {major}.{minor}"
        )
    return layout


# ---------------------------------------------------------------- decoding


def body_size(frame: Frame, trailer: bytes) -> int:
    """Number of bytes from the file's start that hold the header and the slots in use.

    A ``proc_num`` out of range counts as none: ``decode`` refuses it.
    """
    (proc_num,) = _INT.unpack_from(trailer)
    return frame.slots + frame.slot_size * (proc_num if 0 < proc_num <= MAX_PROCESSES else 0)


def decode(frame: Frame, body: bytes, trailer: bytes, object_name: str = "region") -> Region:
    """A region from its first ``body_size(frame, trailer)`` bytes and its trailer.

    A number that cannot be is None, and only this number: a counter or limit of memory above
    ``PLAUSIBLE_BYTES``, a core limit or ``sm_util`` above 100 %.

    Raises:
        SourceError: INITIALIZING, BAD_MAGIC, UNKNOWN_LAYOUT, DEVICE_COUNT, PROCESS_COUNT,
            BAD_UUID, DUPLICATE_UUID, INCONSISTENT_SUMS, CHANGED_WHILE_READ.
    """
    layout, major, minor = _layout(frame, body, object_name)
    last_kernel_time = None
    if frame.versioned:
        proc_num, switch, recent, priority, last_kernel_time = _VERSIONED_TRAILER.unpack_from(
            trailer
        )
    else:
        proc_num, switch, recent, priority = _TRAILER.unpack_from(trailer)
    if not 0 <= proc_num <= MAX_PROCESSES:
        raise SourceError(Reason.PROCESS_COUNT, object_name, f"proc_num {proc_num}")
    devices = _devices(frame, body, object_name)
    layout, processes = _processes(layout, len(devices), body, proc_num, object_name)
    return Region(
        layout=layout.id,
        devices=devices,
        processes=processes,
        proc_num=proc_num,
        utilization_switch=switch,
        recent_kernel=recent,
        priority=priority,
        last_kernel_time=last_kernel_time,
        major_version=major if frame.versioned else None,
        minor_version=minor if frame.versioned else None,
    )


def _layout(frame: Frame, body: bytes, object_name: str) -> tuple[Layout, int, int]:
    """The layout by magic, size and version words, with the version words."""
    magic, major, minor = _HEAD.unpack_from(body)
    if magic != MAGIC:
        reason = Reason.BAD_MAGIC if magic else Reason.INITIALIZING
        raise SourceError(reason, object_name, f"magic {magic}")
    return layout_for(frame.file_size, major, minor, object_name), major, minor


def _devices(frame: Frame, body: bytes, object_name: str) -> tuple[RegionDevice, ...]:
    (count,) = _WORD.unpack_from(body, frame.device_num)
    if count == 0:
        raise SourceError(Reason.INITIALIZING, object_name, "device_num 0")
    if count > MAX_DEVICES:
        raise SourceError(Reason.DEVICE_COUNT, object_name, f"device_num {count}")
    end = frame.uuids + count * UUID_BYTES
    uuids = [
        _uuid(body[offset : offset + UUID_BYTES]) for offset in range(frame.uuids, end, UUID_BYTES)
    ]
    if "" in uuids:
        offset = frame.uuids + uuids.index("") * UUID_BYTES
        shown = body[offset : offset + UUID_BYTES].partition(b"\0")[0]
        raise SourceError(Reason.BAD_UUID, object_name, repr(shown)[1:])
    if len(set(uuids)) != count:
        raise SourceError(Reason.DUPLICATE_UUID, object_name, ", ".join(uuids))
    words = _words(count)
    memory = words.unpack_from(body, frame.memory_limits)
    cores = words.unpack_from(body, frame.core_limits)
    if max(memory) <= PLAUSIBLE_BYTES and max(cores) <= WHOLE_DEVICE_PERCENT:
        return tuple(map(RegionDevice, uuids, memory, cores))
    return tuple(
        RegionDevice(uuid, _possible(limit), _possible(percent, WHOLE_DEVICE_PERCENT))
        for uuid, limit, percent in zip(uuids, memory, cores, strict=True)
    )


def _possible(number: int, most: int = PLAUSIBLE_BYTES) -> int | None:
    return number if number <= most else None


@functools.lru_cache(maxsize=1024)
def _uuid(field: bytes) -> str:
    """The UUID in a field of 96 bytes, up to its NUL; "" if that is none."""
    text = field.partition(b"\0")[0]
    return text.decode("ascii") if _UUID.fullmatch(text) else ""


def _processes(
    layout: Layout, devices: int, body: bytes, proc_num: int, object_name: str
) -> tuple[Layout, tuple[RegionProcess, ...]]:
    """The slots in use, and their layout: V1.1 may prove to be V1.1b.

    Where only the slots distinguish two layouts, a wrapped counter counts as one only if the other
    layout is refused all the same.
    """
    frame = layout.frame
    slots = range(frame.slots, frame.slots + frame.slot_size * proc_num, frame.slot_size)

    def read(layout: Layout, *, wraps: bool) -> tuple[RegionProcess, ...]:
        return tuple(
            _slot(layout, devices, body, offset, object_name, wraps=wraps) for offset in slots
        )

    if layout is not _V11:
        return layout, read(layout, wraps=True)
    twins = (_V11, _V11B)
    refused: list[SourceError] = []
    for twin in twins:
        try:
            return twin, read(twin, wraps=False)
        except SourceError as error:
            refused.append(error)
    fitting: list[tuple[Layout, tuple[RegionProcess, ...]]] = []
    for twin in twins:
        with contextlib.suppress(SourceError):
            fitting.append((twin, read(twin, wraps=True)))
    if len(fitting) == 1:
        return fitting[0]
    raise refused[0]


def _slot(
    layout: Layout, devices: int, body: bytes, start: int, object_name: str, *, wraps: bool
) -> RegionProcess:
    """A slot; a counter that has wrapped is None if ``wraps``, else an error."""
    if layout.seqlock is not None and _WORD.unpack_from(body, start + layout.seqlock)[0] & 1:
        raise SourceError(Reason.CHANGED_WHILE_READ, object_name, "a slot is being written")
    values = _shape(layout.id, devices).unpack_from(body, start + layout.used)
    status = values[-1]
    if layout.twin_status is not None:
        (twin,) = _INT.unpack_from(body, start + layout.twin_status)
        if status not in _STATUSES or (status == _DEAD and twin in _ALIVE):
            raise SourceError(
                Reason.INCONSISTENT_SUMS, object_name, f"status {status}, beside {twin}"
            )
    memory = 5 * devices
    used = []
    for device in range(devices):
        counters = values[5 * device : 5 * device + 5]
        context, module, data, offset, total = counters
        if not max(context + module + data, offset) <= total <= PLAUSIBLE_BYTES:
            if not wraps or max(counters) <= PLAUSIBLE_BYTES:
                detail = f"total {total}, parts {context} + {module} + {data}, offset {offset}"
                raise SourceError(Reason.INCONSISTENT_SUMS, object_name, detail)
            context, module, data, offset, total = map(_possible, counters)
        sm_util = values[memory + device] if layout.util is not None else None
        if sm_util is not None and sm_util > FULL_PERCENT:
            sm_util = None
        used.append(RegionUse(context, module, data, offset, total, sm_util))
    pid, host_pid = _IDS.unpack_from(body, start)
    return RegionProcess(pid, host_pid, status, tuple(used))


@functools.cache
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")


@functools.cache
def _shape(layout_id: str, devices: int) -> struct.Struct:
    """A slot from ``used`` to ``status``: 5 words per device, then sm_util per device, status."""
    layout = LAYOUTS[layout_id]
    memory = f"5Q{layout.used_stride - 40}x" * devices  # 40: context, module, data, offset, total
    offset = layout.used + layout.used_stride * devices
    if layout.util is None:
        return struct.Struct(f"<{memory}{layout.status - offset}xi")
    util = f"16xQ{layout.util_stride - 24}x" * devices  # 16: dec_util, enc_util
    end = layout.util + layout.util_stride * devices
    return struct.Struct(f"<{memory}{layout.util - offset}x{util}{layout.status - end}xi")


# ---------------------------------------------------------------- encoding

Patch = tuple[int, bytes]  # an offset, and what to write there


# ---------------------------------------------------------------- the words of the feedback

_SWITCH_AT, _RECENT_AT = 4, 8  # behind the trailer's start: a word of four bytes each


class FeedbackWords(msgspec.Struct, frozen=True, gc=False):
    """The two words by which the node's feedback and the library talk.

    Attributes:
        recent_kernel: the library writes 2 with each launch that its core limit covers, and holds
            launches back while the word is below 0.
        utilization_switch: 0 lifts the core limit.
    """

    recent_kernel: int
    utilization_switch: int


class RegionFeedback(msgspec.Struct, frozen=True, gc=False):
    """What the feedback reads of a region: header and trailer, no slots."""

    devices: tuple[str, ...]
    priority: int
    words: FeedbackWords


def decode_feedback(
    frame: Frame, header: bytes, trailer: bytes, object_name: str = "region"
) -> RegionFeedback:
    """What the feedback needs, from the bytes before the slots and the trailer.

    A slot that a killed process left half-written does not matter here. Raises SourceError as
    :func:`decode` does for the header.
    """
    _layout(frame, header, object_name)
    _, switch, recent, priority = _TRAILER.unpack_from(trailer)
    uuids = tuple(device.uuid for device in _devices(frame, header, object_name))
    return RegionFeedback(uuids, priority, FeedbackWords(recent, switch))


def decode_words(trailer: bytes) -> FeedbackWords:
    """The two words of a trailer."""
    _, switch, recent, _ = _TRAILER.unpack_from(trailer)
    return FeedbackWords(recent, switch)


def recent_kernel_patch(frame: Frame, value: int) -> Patch:
    """The write of ``recent_kernel`` alone."""
    return frame.trailer + _RECENT_AT, _INT.pack(value)


def utilization_switch_patch(frame: Frame, value: int) -> Patch:
    """The write of ``utilization_switch`` alone."""
    return frame.trailer + _SWITCH_AT, _INT.pack(value)


# ---------------------------------------------------------------- whole files


def encode(region: Region, layout_id: str) -> bytes:
    """A whole file that holds ``region`` in the layout ``layout_id``; the rest of it is zero."""
    image = bytearray(LAYOUTS[layout_id].frame.file_size)
    for offset, data in creation(region, layout_id):
        image[offset : offset + len(data)] = data
    return bytes(image)


def creation(region: Region, layout_id: str) -> list[Patch]:
    """The writes that turn a file of zeros (also a sparse one) into ``region``; the magic last."""
    layout = LAYOUTS[layout_id]
    frame = layout.frame
    count = len(region.devices)
    words = _words(count)
    head = _INT.pack(MAGIC) if layout.version is None else _HEAD.pack(MAGIC, *layout.version)
    return [
        *patches(region, layout_id),
        (frame.memory_limits, words.pack(*(_word(d.memory_limit_bytes) for d in region.devices))),
        (frame.core_limits, words.pack(*(_word(d.core_limit_percent) for d in region.devices))),
        *(
            (frame.uuids + UUID_BYTES * index, device.uuid.encode().ljust(UUID_BYTES, b"\0"))
            for index, device in enumerate(region.devices)
        ),
        (frame.device_num, _WORD.pack(count)),
        (0, head),
    ]


def patches(region: Region, layout_id: str, generation: int = 1) -> list[Patch]:
    """The writes while a container runs, in this order: slots, then the trailer.

    Where the layout has a seqlock each slot's is made odd before and even after. ``generation``
    counts the updates from 1, so that a reader who straddles one sees another number.
    """
    layout = LAYOUTS[layout_id]
    frame = layout.frame
    writes: list[Patch] = []
    for index, process in enumerate(region.processes):
        offset = frame.slots + frame.slot_size * index
        data = [
            (offset, _IDS.pack(process.pid, process.host_pid)),
            (offset + layout.used, _pack_slot(layout, process)),
        ]
        if layout.seqlock is None:
            writes += data
        else:
            lock = offset + layout.seqlock
            writes += [
                (lock, _WORD.pack(2 * generation - 1)),
                *data,
                (lock, _WORD.pack(2 * generation)),
            ]
    trailer = _TRAILER.pack(
        region.proc_num, region.utilization_switch, region.recent_kernel, region.priority
    )
    if frame.versioned:
        trailer += _WORD.pack(region.last_kernel_time or 0)
    return [*writes, (frame.trailer, trailer)]


def _word(number: int | None) -> int:
    """The number in a file; None becomes one that cannot be."""
    return _WRAPPED if number is None else number


def _pack_slot(layout: Layout, process: RegionProcess) -> bytes:
    memory = [
        _word(number)
        for use in process.used
        for number in (use.context, use.module, use.data, use.offset, use.total)
    ]
    util = [] if layout.util is None else [use.sm_util or 0 for use in process.used]
    return _shape(layout.id, len(process.used)).pack(*memory, *util, process.status)
