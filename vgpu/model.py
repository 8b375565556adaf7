"""The vocabulary as frozen values: who asks, what is shared, who holds it. No I/O."""

from enum import StrEnum

import msgspec


class Scheme(StrEnum):
    """The four families of sharing systems, and what belongs to none of them."""

    VOLCANO = "volcano"  # Volcano vGPU and HAMi
    GPUSHARE = "gpushare"  # Aliyun
    GAIA = "gaia"  # Tencent gpu-manager
    KUBESHARE = "kubeshare"  # KubeShare / Gemini
    NONE = "none"  # a process on a card that no sharing system knows of


class Phase(StrEnum):
    """Where an allocation stands."""

    ASSUMED = "assumed"  # a scheduler promised it
    ASSIGNED = "assigned"  # the plugin granted it
    RELEASED = "released"  # its containers are gone


class Source(StrEnum):
    """Where a fact was read. The exporter says it of every container it attributes."""

    SHIM = "shim"
    PROCESS = "process"
    CHECKPOINT = "kubelet-checkpoint"
    POD_RESOURCES = "pod-resources"
    LIMIT_FILE = "limit-file"
    ANNOTATIONS = "annotations"


class PodRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """A pod by identity (``uid``), with its name for people."""

    uid: str
    namespace: str
    name: str


class Share(msgspec.Struct, frozen=True, gc=False):
    """A slice of one device: memory in bytes and cores in percent; None is unlimited."""

    device: str
    memory_bytes: int | None = None
    cores_percent: int | None = None
