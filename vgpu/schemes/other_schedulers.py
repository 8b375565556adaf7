"""Pods whose devices another system than ours keeps: recognised by its marks, and not read. Pure.

KAI Scheduler (kai-scheduler/KAI-Scheduler, formerly NVIDIA/KAI-Scheduler, v0.4 to v0.17): users ask
for a part of a GPU by the annotation ``gpu-fraction`` or ``gpu-memory`` and request no resource;
the binder labels the pod with its GPU group, ``runai-gpu-group``, or with a label
``runai-gpu-group/<group>`` for each of several GPUs (``pkg/common/constants/constants.go``,
``pkg/common/resources/gpu_sharing.go``). A pod in the namespace of reservations keeps the GPU of
the group (``pkg/binder/binding/resourcereservation``); deleting it ends the group's pods. A pod
whose groups have known GPUs (:mod:`vgpu.schemes.kai.groups`) is read, and is none of these here.

Koordinator (koordinator-sh/koordinator, v1.0 to v1.8): the scheduler writes the devices of a pod
into ``scheduling.koordinator.sh/device-allocated`` (``apis/extension/device_share.go``). Pods
request ``koordinator.sh/gpu`` and the like, and with HAMi-core have the label
``koordinator.sh/gpu-isolation-provider``. Its scheduler then adds HAMi's label
``hami.io/vgpu-node`` (``pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go``), so that the
pod looks like one of HAMi's. Other ``koordinator.sh`` keys are on pods without GPUs, too.

Devices of other vendors than NVIDIA have resources of their own, and HAMi's annotations
``hami.io/<device>-devices-allocated`` (HAMi 2.10, ``pkg/device``). They are named, and counted
nowhere.

:data:`MARKS` has a row for each mark; the first that fits a pod counts.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from vgpu.model.allocation import Request
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Pod
from vgpu.model.units import MIB
from vgpu.schemes.kai.groups import is_group_key, is_reservation
from vgpu.schemes.kai.keys import FRACTIONS, RESERVATION, RESERVATION_NAMESPACES
from vgpu.schemes.kai.request import AskedFraction, asked, asked_devices, fraction_container
from vgpu.schemes.vendors import is_of_other_vendor

DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""The annotation with the devices that Koordinator has allocated."""

ISOLATION: Final = "koordinator.sh/gpu-isolation-provider"
"""The label of Koordinator's pods that have the library of another system, HAMi-core."""

MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
"""Koordinator's resource: percent of a GPU's memory, more than 100 of several GPUs."""

_OF_VENDOR: Final = re.compile(
    r"hami\.io/(?!vgpu-)[A-Za-z0-9.-]+-devices-(?:allocated|to-allocate)", re.ASCII
)


class OtherScheduler(StrEnum):
    """A system whose devices vgpu does not read; the value is its name for people."""

    KAI = "KAI Scheduler"
    KOORDINATOR = "Koordinator"
    VENDOR = "the device plugin of another vendor"


class Recognised(msgspec.Struct, frozen=True, gc=False):
    """Another system's pod: by which label, annotation or resource it is recognised."""

    scheduler: OtherScheduler
    key: str


def asked_fraction(pod: Pod) -> AskedFraction | None:
    """What a pod of KAI asks for; None of other pods. An amount that cannot be read is unknown."""
    if not pod.group_gpus:
        recognised = other_scheduler(pod)
        if recognised is None or recognised.scheduler is not OtherScheduler.KAI:
            return None
    return asked(pod)


def fraction_requests(pod: Pod) -> tuple[Request, ...]:
    """What a pod of KAI asks for as a request; none of other pods.

    How much memory a part of a GPU is, only the node shows on which the pod is.
    """
    amount = asked_fraction(pod)
    if amount is None or not amount.is_known:
        return ()
    memory = None if amount.memory_mib is None else amount.memory_mib * MIB
    return (Request(fraction_container(pod), asked_devices(pod) or 1, memory),)


def unread_containers(pod: Pod) -> tuple[str, ...]:
    """The containers of another scheduler's pod that have shares of GPUs, which vgpu does not read.

    Those that request its resources, else the first one; of KAI's the one that is named, else the
    first. None of a pod of a vendor's devices, or of KAI's reservations, which have whole GPUs.
    """
    recognised = other_scheduler(pod)
    if recognised is None or recognised.scheduler is OtherScheduler.VENDOR:
        return ()
    if is_reservation(pod):
        return ()
    if recognised.scheduler is OtherScheduler.KAI:
        return tuple(filter(None, (fraction_container(pod),)))
    asking = tuple(
        container.name
        for container in pod.containers
        if any(
            amount and system_of_resource(name) is recognised.scheduler
            for name, amount in container.others.items()
        )
    )
    apps = (each.name for each in pod.containers if each.kind is ContainerKind.APP)
    return asking or tuple(islice(apps, 1))


class ForeignMark(msgspec.Struct, frozen=True):
    """What shows that a pod is another system's.

    Attributes:
        scheduler: the system.
        labels, annotations, resources: whether a key or a resource is the mark.
        alone: whether it only counts while no container requests a resource of a system of ours.
        value: the value that a label has to have; "" is any.
        namespaces: those in which it counts; none is all.
    """

    scheduler: OtherScheduler
    labels: Callable[[str], bool] | None = None
    annotations: Callable[[str], bool] | None = None
    resources: Callable[[str], bool] | None = None
    alone: bool = False
    value: str = ""
    namespaces: frozenset[str] = frozenset()


def _is_koordinators(name: str) -> bool:
    return name.startswith("koordinator.sh/gpu")


def _is_of_vendor(key: str) -> bool:
    return key.startswith("hami.io/") and _OF_VENDOR.fullmatch(key) is not None


MARKS: Final = (
    ForeignMark(OtherScheduler.KAI, labels=is_group_key),
    ForeignMark(
        OtherScheduler.KAI,
        labels=RESERVATION[0].__eq__,
        value=RESERVATION[1],
        namespaces=RESERVATION_NAMESPACES,
    ),
    ForeignMark(OtherScheduler.KOORDINATOR, annotations=DEVICE_ALLOCATED.__eq__),
    ForeignMark(OtherScheduler.KOORDINATOR, labels=ISOLATION.__eq__),
    ForeignMark(OtherScheduler.KOORDINATOR, resources=_is_koordinators),
    ForeignMark(OtherScheduler.KAI, annotations=FRACTIONS.__contains__, alone=True),
    ForeignMark(OtherScheduler.VENDOR, resources=is_of_other_vendor, alone=True),
    ForeignMark(OtherScheduler.VENDOR, annotations=_is_of_vendor, alone=True),
)
"""The marks: what a row shows does not depend on the rows behind it."""


@lru_cache(4096)
def is_mark(key: str) -> bool:
    """Whether an annotation or label of this key may show that a pod is another system's."""
    return any(
        test(key)
        for mark in MARKS
        for test in ((None if mark.namespaces else mark.labels), mark.annotations)
        if test is not None
    )


@lru_cache(4096)
def is_foreign_resource(name: str) -> bool:
    """Whether an extended resource shows that a pod is another system's."""
    return system_of_resource(name) is not None


def system_of_resource(name: str) -> OtherScheduler | None:
    """The other system that has an extended resource of this name; None if none is known."""
    found = (mark for mark in MARKS if mark.resources is not None and mark.resources(name))
    return next((mark.scheduler for mark in found), None)


def other_scheduler(pod: Pod) -> Recognised | None:
    """The other system that the pod belongs to; None if it is none, or its GPUs are known."""
    if pod.group_gpus:
        return None
    if not _has_mark(pod):  # nearly all; this is called for every pod of a cluster
        return None
    for mark in MARKS:
        key = _key(mark, pod)
        if key and not (mark.alone and _requests_gpus(pod)):
            return Recognised(mark.scheduler, key)
    return None


def _has_mark(pod: Pod) -> bool:
    if any(map(is_mark, pod.labels)) or any(map(is_mark, pod.annotations)):
        return True
    if pod.ref.namespace in RESERVATION_NAMESPACES:
        return True
    return any(is_foreign_resource(name) for each in pod.containers for name in each.others)


def _key(mark: ForeignMark, pod: Pod) -> str:
    """The pod's key or resource that is the mark; "" if it has none."""
    if mark.namespaces and pod.ref.namespace not in mark.namespaces:
        return ""
    if mark.labels is not None:
        for key, value in pod.labels.items():
            if mark.labels(key) and mark.value in ("", value):
                return key
    if mark.annotations is not None:
        for key in pod.annotations:
            if mark.annotations(key):
                return key
    if mark.resources is not None:
        for container in pod.containers:
            for name, amount in container.others.items():
                if amount and mark.resources(name):
                    return name
    return ""


def _requests_gpus(pod: Pod) -> bool:
    return any(each.broken or any(each.limits.values()) for each in pod.containers)
