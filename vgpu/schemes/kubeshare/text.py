"""Texts that both releases of KubeShare share: decimals, bytes, UUIDs, the numbers of a request.

Decimals are thousandths of a GPU, exact; they are read without exponents and signs.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.allocation import Device, Share
from vgpu.model.units import WHOLE_DEVICE_MILLI, milli
from vgpu.schemes.codec import ClaimError

REQUEST: Final = "gpu_request"
LIMIT: Final = "gpu_limit"
MEMORY: Final = "gpu_mem"
"""Names of the three numbers; a release's prefix stands before them."""

MOST_GPUS: Final = 64
"""Maximum number of GPUs of a pod, and of a node."""

_DECIMAL = re.compile(r"[0-9]{1,3}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}")
_BYTES = re.compile(r"[0-9]{1,18}")
UUID: Final = r"(?:GPU|MIG)-[-A-Za-z0-9]{1,80}"
"""A pattern: the UUID of a GPU or MIG instance."""

_UUID = re.compile(UUID)


class SharePodNumbers(msgspec.Struct, frozen=True, gc=False):
    """The three numbers as they were set; None was not set, nor was an empty text."""

    request_milli: int | None = None
    limit_milli: int | None = None
    memory_bytes: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether any of them was."""
        return self != SharePodNumbers()


def parse_numbers(texts: Mapping[str, str], prefix: str, object_name: str) -> SharePodNumbers:
    """The numbers under their keys. Raises ClaimError."""

    def thousandths(name: str) -> int | None:
        text = texts.get(prefix + name, "")
        if text and not _DECIMAL.fullmatch(text):
            raise ClaimError(object_name, prefix + name, text, "not a decimal number")
        return milli(text) if text else None

    return SharePodNumbers(
        thousandths(REQUEST), thousandths(LIMIT), byte_count(texts, prefix + MEMORY, object_name)
    )


def byte_count(texts: Mapping[str, str], key: str, object_name: str) -> int | None:
    """A number of bytes, None if not set. Raises ClaimError."""
    text = texts.get(key, "")
    if text and not is_number(text):
        raise ClaimError(object_name, key, text, "not a number of bytes")
    return int(text) if text else None


def is_number(text: str) -> bool:
    """Whether the text is a decimal integer of less than 60 bits."""
    return _BYTES.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    """Whether the text can be the UUID of a GPU or MIG instance."""
    return _UUID.fullmatch(text) is not None


def decimal(thousandths: int) -> str:
    """A fraction of a GPU as people write it: ``0.5``, ``1.0``."""
    whole, rest = divmod(thousandths, WHOLE_DEVICE_MILLI)
    return f"{whole}.{f'{rest:03}'.rstrip('0') or '0'}"


def resolve(share: Share, devices: Mapping[str, Device], object_name: str, key: str) -> Device:
    """The device that a share is of. Raises ClaimError."""
    if share.device not in devices:
        raise ClaimError(object_name, key, share.device, "names no device of the node")
    return devices[share.device]
