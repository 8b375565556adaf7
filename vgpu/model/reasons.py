"""Every reason why something could not be read or was refused, for code, metrics and docs.

A reason is the value of the label ``reason`` on ``vgpu_collector_failures_total`` and
``vgpu_collector_rejected``; the documentation and the status page have its text.
"""

from enum import StrEnum
from typing import Final, Self

import msgspec


class Explained(StrEnum):
    """An enum whose members are label values, each with an ``explanation`` for people."""

    explanation: str

    def __new__(cls, value: str, explanation: str) -> Self:
        """Create the member from its label value and its text."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        return member


class Reason(Explained):
    """Why an input was refused or a collector failed; ``explanation`` is the text for people."""

    # Any file
    UNREADABLE = "unreadable", "the file or folder could not be opened or read"
    NOT_REGULAR_FILE = "not_regular_file", "a symlink, FIFO, socket, device or folder in its place"
    TOO_LARGE = "too_large", "larger than anything the format allows"
    TOO_MANY_FILES = "too_many_files", "more entries than are read from one folder"
    MALFORMED = "malformed", "the content does not follow its format"
    EXHAUSTED = (
        "exhausted",
        "this process or the node had no file descriptor or memory left to read it with",
    )

    # Shim regions
    EMPTY = "empty", "a file of zero bytes"
    UNKNOWN_LAYOUT = "unknown_layout", "file size and version words match no known region layout"
    BAD_MAGIC = "bad_magic", "the region does not begin with the shim's magic number"
    INITIALIZING = "initializing", "the shim has not finished writing the region"
    TRUNCATED = "truncated", "the file ends before its content does"
    CHANGED_WHILE_READ = "changed_while_read", "no consistent copy after several tries"
    DEVICE_COUNT = "device_count_out_of_range", "device_num is outside 0..16"
    PROCESS_COUNT = "process_count_out_of_range", "proc_num is outside 0..1024"
    BAD_UUID = "bad_uuid", "a device UUID that is not a UUID"
    DUPLICATE_UUID = "duplicate_uuid", "the same device UUID twice in one region"
    UNKNOWN_DEVICE = "unknown_device", "the input names a device that this node does not have"
    DEVICE_NOT_ALLOCATED = (
        "device_not_allocated",
        "the input names a device that the kubelet did not allocate to this container",
    )
    INCONSISTENT_SUMS = "inconsistent_sums", "memory totals smaller than the sum of their parts"
    BAD_DIRECTORY_NAME = "bad_directory_name", "the folder is not named <podUID>_<container>"
    AMBIGUOUS = "ambiguous", "several candidates where exactly one is allowed"

    IMPLAUSIBLE = (
        "implausible",
        "an impossible number: more than the device has, a time in the future, a priority below 0",
    )

    # Our own checkpoint
    FUTURE_VERSION = "future_version", "written by a later version of this program"
    OTHER_NODE = "other_node", "written for another node"
    OTHER_SCHEME = "other_scheme", "written for another sharing system than the file name implies"

    # The driver
    LIBRARY_NOT_FOUND = "library_not_found", "libnvidia-ml.so.1 is not installed"
    DRIVER_NOT_LOADED = "driver_not_loaded", "the NVIDIA kernel module is not loaded"
    VERSION_MISMATCH = (
        "lib_rm_version_mismatch",
        "the driver was replaced while this process used it",
    )
    GPU_LOST = "gpu_lost", "the device fell off the bus or needs a reset"
    DRIVER_ERROR = "driver_error", "the driver answered with another error"
    PROCESS_LIST_INVALID = "process_list_invalid", "the driver's process list contradicts itself"
    TIMEOUT = "timeout", "no answer before the deadline"

    # The kubelet and the container runtime
    ABSENT = "absent", "the file, folder or socket does not exist"
    CHECKSUM_MISMATCH = "checksum_mismatch", "the checkpoint's checksum does not verify"
    RATE_LIMITED = "rate_limited", "the kubelet refused the call for its rate limit"
    EMPTY_AFTER_RESTART = "empty_after_restart", "the kubelet has not synced its pods yet"
    FORBIDDEN = "forbidden", "the API server refused the request for lack of permissions (RBAC)"
    UNREACHABLE = "unreachable", "the API server or the token daemon could not be reached"
    NOT_INSTALLED = "not_installed", "an optional dependency is missing"
    FORGED = (
        "forged",
        "data that a tenant can write and that the kubelet, the driver or other data contradicts",
    )
    FOREIGN_PIDS = "foreign_pids", "these are not the host's processes: hostPID is missing"
    INTERNAL = "internal_error", "a defect in this program; the log has the details"


NO_DRIVER: Final = frozenset({Reason.LIBRARY_NOT_FOUND, Reason.DRIVER_NOT_LOADED})
"""Reasons that mean a machine without NVIDIA's driver."""

NO_DRIVER_ADVICE: Final = "no NVIDIA driver here: vgpu doctor node"
"""What a command reports there, with the command that finds out more."""


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """A refused input: ``object_name`` is its path or name, ``detail`` what was wrong."""

    object_name: str
    reason: Reason
    detail: str = ""


class SourceError(Exception):
    """A whole source could not be read.

    Attributes:
        reason: the reason code.
        object_name: the file, socket or call that failed.
        detail: what the system reported.
    """

    def __init__(self, reason: Reason, object_name: str, detail: str = "") -> None:
        super().__init__(f"{object_name}: {detail or reason.explanation}")
        self.reason = reason
        self.object_name = object_name
        self.detail = detail

    def rejection(self) -> Rejection:
        """The same as a value, where only this one input is refused."""
        return Rejection(self.object_name, self.reason, self.detail)
