"""The XIDs that NVIDIA documents: what each of them means, and how severe it is.

An XID that is not here is one that NVIDIA's catalog does not list, or lists as unused. Alerts,
status page, logs, device plugin and documentation read this table.

Sources:

- Name and immediate action: NVIDIA's XID catalog for Ampere and newer GPUs,
  https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
- What the device plugin ignores: the list in ``getDisabledHealthCheckXids`` of
  https://github.com/NVIDIA/k8s-device-plugin/blob/main/internal/rm/health.go
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.model.reasons import Explained


class XidSeverity(StrEnum):
    """How severe an XID is; its alert has the same severity.

    CRITICAL is only an XID for which the catalog asks for a reset or a restart and which is not
    known to have a harmless cause. NONE is an XID that ends or disturbs one program, or reports
    something that needs no action. WARNING is every other XID, also those of which the catalog
    leaves the severity open.
    """

    CRITICAL = "critical"
    WARNING = "warning"
    NONE = "none"


class XidKind(Explained):
    """What an XID is about."""

    APPLICATION = "application", "an error of one program, or of an engine that it uses"
    MEMORY = "memory", "the GPU's memory"
    NVLINK = "nvlink", "NVLink, or the link to the CPU (C2C)"
    BUS = "bus", "the connection by PCI Express"
    FIRMWARE = "firmware", "the GPU's own processors, the firmware or the driver"
    POWER = "power", "the power supply"
    SECURITY = "security", "a security fault, or confidential computing"
    INFORMATION = "information", "a message that needs no action by itself"


class KnownXid(msgspec.Struct, frozen=True, gc=False):
    """A row of the table.

    Attributes:
        number: the XID.
        name: its name in the catalog.
        kind: what it is about.
        action: the catalog's immediate action, "" if the catalog has none.
        severity: how severe it is.
        ignored: whether NVIDIA's device plugin ignores it, as an error of an application.
        note: why its severity is not what the action suggests.
    """

    number: int
    name: str
    kind: XidKind
    action: str
    severity: XidSeverity
    ignored: bool = False
    note: str = ""


_APPLICATION, _MEMORY, _NVLINK, _BUS, _FIRMWARE, _POWER, _SECURITY, _INFORMATION = XidKind
_CRITICAL, _WARNING, _NONE = XidSeverity

_NVLINK5: Final = "fatal or not, by the sub-code in the kernel's log"
_BESIDE_48: Final = "comes with XID 48, which is critical"
_NO_ACTION: Final = "the catalog has no action"


def _engine(number: int, name: str, *, ignored: bool = False) -> KnownXid:
    """An error of an engine: the program has to be started again, and the GPU works."""
    return KnownXid(number, name, _APPLICATION, "RESTART_APP", _NONE, ignored)


def _nvlink5(number: int, unit: str) -> KnownXid:
    """An error of a unit of the fifth generation of NVLink."""
    name = f"NVLink: {unit} error"
    return KnownXid(number, name, _NVLINK, "WORKFLOW_NVLINK5_ERR", _WARNING, note=_NVLINK5)


_COPY_ENGINES: Final = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO_DECODERS: Final = (68, 83, 84, 88, 89, 96, 97, 98)
_JPEG_ENGINES: Final = (82, *range(99, 106))

TABLE: Final = (
    _engine(8, "GPU stopped processing"),
    _engine(11, "Invalid or corrupted push buffer stream"),
    _engine(13, "Graphics engine exception", ignored=True),
    _engine(25, "Invalid or illegal push buffer stream"),
    _engine(31, "GPU memory page fault", ignored=True),
    KnownXid(
        32,
        "Invalid or corrupted push buffer stream",
        _BUS,
        "RESTART_APP",
        _WARNING,
        note="mostly the quality of the PCI Express connection, according to the catalog",
    ),
    KnownXid(37, "Driver firmware error", _FIRMWARE, "IGNORE", _NONE),
    KnownXid(38, "Driver firmware error", _FIRMWARE, "IGNORE", _WARNING),
    *(_engine(xid, f"Copy engine {engine} error") for engine, xid in enumerate(_COPY_ENGINES)),
    KnownXid(43, "GPU stopped processing", _APPLICATION, "IGNORE", _NONE, ignored=True),
    KnownXid(44, "Graphics engine fault during context switch", _FIRMWARE, "IGNORE", _WARNING),
    KnownXid(
        45,
        "Preemptive cleanup, due to previous errors",
        _APPLICATION,
        "WORKFLOW_XID_45",
        _NONE,
        ignored=True,
    ),
    KnownXid(46, "GPU stopped processing", _FIRMWARE, "RESET_GPU", _CRITICAL),
    KnownXid(48, "Double-bit ECC error", _MEMORY, "WORKFLOW_XID_48", _CRITICAL),
    KnownXid(
        54,
        "Auxiliary power is not connected to the GPU board",
        _POWER,
        "CHECK_MECHANICALS",
        _WARNING,
    ),
    _engine(60, "Video processor exception"),
    KnownXid(62, "Internal micro-controller halt", _FIRMWARE, "RESET_GPU", _CRITICAL),
    KnownXid(
        63,
        "GPU memory remapping event",
        _MEMORY,
        "IGNORE",
        _NONE,
        note="a reset that is due has its own alert, VgpuResetDue",
    ),
    KnownXid(64, "GPU memory remapping failure", _MEMORY, "RESET_GPU", _CRITICAL),
    KnownXid(66, "Illegal access by driver", _FIRMWARE, "IGNORE", _WARNING),
    KnownXid(67, "Illegal access by driver", _FIRMWARE, "IGNORE", _WARNING),
    *(
        _engine(xid, f"Video decoder {engine} (NVDEC{engine}) exception", ignored=xid == 68)
        for engine, xid in enumerate(_VIDEO_DECODERS)
    ),
    _engine(69, "Graphics engine class error"),
    KnownXid(74, "NVLink error", _NVLINK, "WORKFLOW_NVLINK_ERR", _CRITICAL),
    KnownXid(78, "vGPU start error", _FIRMWARE, "UPDATE_SWFW", _WARNING),
    KnownXid(79, "GPU has fallen off the bus", _BUS, "RESTART_BM", _CRITICAL),
    _engine(80, "Corrupted data sent to GPU"),
    *(
        _engine(xid, f"JPEG engine {engine} (NVJPG{engine}) error")
        for engine, xid in enumerate(_JPEG_ENGINES)
    ),
    _engine(86, "Optical flow engine (OFA) exception"),
    KnownXid(92, "High single-bit ECC error rate", _MEMORY, "IGNORE", _WARNING),
    KnownXid(
        93, "Non-fatal violation of provisioned InfoROM wear limit", _FIRMWARE, "IGNORE", _WARNING
    ),
    KnownXid(
        94,
        "Contained memory error",
        _MEMORY,
        "RESTART_APP",
        _WARNING,
        note="the GPU is to be reset when convenient, according to the catalog",
    ),
    KnownXid(95, "Uncontained memory error", _MEMORY, "RESET_GPU", _CRITICAL),
    KnownXid(106, "SMBPBI test message", _INFORMATION, "IGNORE", _NONE),
    KnownXid(107, "SMBPBI test message, silent", _INFORMATION, "IGNORE", _NONE),
    KnownXid(
        109,
        "Context switch timeout error",
        _APPLICATION,
        "RESET_GPU",
        _WARNING,
        ignored=True,
        note="an application can cause it, according to NVIDIA's device plugin",
    ),
    KnownXid(110, "Security fault error", _SECURITY, "RESET_GPU", _CRITICAL),
    KnownXid(119, "GSP RPC timeout", _FIRMWARE, "RESET_GPU", _CRITICAL),
    KnownXid(120, "GSP error", _FIRMWARE, "RESET_GPU", _CRITICAL),
    KnownXid(121, "C2C error", _NVLINK, "IGNORE", _WARNING),
    KnownXid(136, "Link training failed", _NVLINK, "RESET_GPU", _CRITICAL),
    KnownXid(137, "NVLink privilege error", _NVLINK, "IGNORE", _WARNING),
    _engine(139, "Optical flow engine 1 (OFA1) error"),
    KnownXid(140, "ECC unrecovered error", _MEMORY, "RESET_GPU", _CRITICAL),
    KnownXid(141, "CUDA fast path error", _FIRMWARE, "IGNORE", _WARNING),
    KnownXid(142, "Video encoder 3 (NVENC3) error", _APPLICATION, "CONTACT_SUPPORT", _WARNING),
    KnownXid(143, "GPU initialization error", _FIRMWARE, "RESET_GPU", _CRITICAL),
    _nvlink5(144, "SAW"),
    _nvlink5(145, "RLW"),
    _nvlink5(146, "TLW"),
    _nvlink5(147, "TREX"),
    _nvlink5(148, "NVLPW_CTRL"),
    _nvlink5(149, "NETIR"),
    _nvlink5(150, "MSE"),
    KnownXid(151, "Key rotation error", _SECURITY, "RESTART_VM", _WARNING),
    KnownXid(
        154,
        "GPU recovery action changed",
        _FIRMWARE,
        "XID_154",
        _WARNING,
        note="the kernel's log has the action: none, drain, GPU reset or node reboot",
    ),
    KnownXid(
        155,
        "NVLink: software-defined error",
        _NVLINK,
        "RESET_GPU",
        _WARNING,
        note="also reported when a link goes down on purpose, according to the catalog",
    ),
    KnownXid(
        156,
        "Resource retirement event",
        _MEMORY,
        "RESET_GPU",
        _WARNING,
        note="after the reset it can be ignored, according to the catalog",
    ),
    KnownXid(157, "Resource retirement failure", _MEMORY, "IGNORE", _WARNING),
    KnownXid(158, "GPU fatal timeout", _FIRMWARE, "RESET_GPU", _CRITICAL),
    KnownXid(159, "CHI non-data error", _NVLINK, "CHECK_UVM", _WARNING),
    KnownXid(160, "Channel retirement event", _MEMORY, "IGNORE", _WARNING),
    KnownXid(161, "Channel retirement failure", _MEMORY, "IGNORE", _WARNING),
    KnownXid(162, "Power smoothing re-engaged", _INFORMATION, "", _NONE),
    KnownXid(163, "Power smoothing disengaged", _POWER, "", _WARNING, note=_NO_ACTION),
    KnownXid(164, "Power smoothing: low lifetime reached", _POWER, "", _WARNING, note=_NO_ACTION),
    KnownXid(165, "Power smoothing: lifetime exhausted", _POWER, "", _WARNING, note=_NO_ACTION),
    KnownXid(
        166,
        "Traffic of confidential computing on a link that is not set up for it",
        _SECURITY,
        "",
        _WARNING,
        note=_NO_ACTION,
    ),
    KnownXid(167, "PCI Express fatal timeout", _BUS, "", _WARNING, note=_NO_ACTION),
    KnownXid(
        168,
        "Errors found in the write-protected region of memory",
        _MEMORY,
        "",
        _WARNING,
        note=_NO_ACTION,
    ),
    KnownXid(
        169, "Internal micro-controller halt (SEC2)", _FIRMWARE, "", _WARNING, note=_NO_ACTION
    ),
    KnownXid(170, "Interrupt of confidential computing", _SECURITY, "", _WARNING, note=_NO_ACTION),
    KnownXid(171, "Uncorrectable DRAM error", _MEMORY, "", _WARNING, note=_BESIDE_48),
    KnownXid(172, "Uncorrectable SRAM error", _MEMORY, "", _WARNING, note=_BESIDE_48),
)

XIDS: Final[Mapping[int, KnownXid]] = {
    row.number: row for row in sorted(TABLE, key=lambda row: row.number)
}
"""The table by number."""

IGNORED: Final = frozenset(row.number for row in TABLE if row.ignored)
"""XIDs that NVIDIA's device plugin ignores, and ours by default: the GPU is healthy."""

RECENT_SECONDS: Final = 3600
"""Age up to which an XID is a problem of its GPU, in seconds: for alerts and the status page."""


def severity_of(xid: int) -> XidSeverity | None:
    """The severity of the XID; None if the table does not have it."""
    row = XIDS.get(xid)
    return row.severity if row else None


def described(xid: int) -> str:
    """The XID for people, with its name if the table has it."""
    row = XIDS.get(xid)
    return f"XID {xid} ({row.name})" if row else f"XID {xid}"
