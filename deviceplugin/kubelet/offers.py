"""The advertised resources: from the GPUs' health to the lists that the kubelet reads.

A list that the kubelet would not take is not offered; the log, an event on the node and the metrics
name the unit that would fit.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.device_lists import IdUnit, TooLong, offered
from deviceplugin.metrics import GpuStatus, Offer
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.allocation import Device
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError

log = logging.getLogger(__name__)

ToList = Callable[[str, bytes | None], None]
"""Receives a resource and its list; None withdraws the resource."""


class Offers:
    """Keeps the lists of all resources. Any thread may use it."""

    def __init__(
        self,
        adapter: SchemeAdapter,
        unit_of: Callable[[str], IdUnit | None],
        listed: ToList,
        too_long: Callable[[TooLong], None],
    ) -> None:
        """``unit_of`` is what one ID of a resource stands for, where the operator sets it.

        ``too_long`` is called once for every list that cannot be offered.
        """
        self._adapter = adapter
        self._unit_of = unit_of
        self._listed = listed
        self._too_long = too_long
        self._lock = threading.Lock()
        self._devices: tuple[Device, ...] = ()
        self._refused: dict[str, TooLong] = {}
        self._rows: dict[str, Offer] = {}

    def devices(self) -> tuple[Device, ...]:
        """The GPUs as they are shared, with their health; () before they are known."""
        return self._devices

    def update(self, health: Health) -> tuple[Device, ...]:
        """Offer the devices with this health; returns them."""
        with self._lock:
            verdicts = health.verdicts
            shared = self._adapter.devices(health.devices)
            self._devices = tuple(
                replace(device, healthy=verdicts[device.uuid].healthy) for device in shared
            )
            for resource in self._adapter.resources:
                self._offer(resource, self._devices)
            return self._devices

    def rows(self, registered: Mapping[str, bool]) -> tuple[Offer, ...]:
        """The rows for the metrics; ``registered``: by resource, whether the kubelet takes it."""
        with self._lock:
            return tuple(
                replace(row, registered=registered.get(name, False))
                for name, row in self._rows.items()
            )

    def servable(self) -> frozenset[str]:
        """The resources that can be registered."""
        with self._lock:
            return frozenset(self._rows.keys() - self._refused.keys())

    def _offer(self, resource: str, devices: tuple[Device, ...]) -> None:
        codec = self._adapter.codec
        try:
            offer = offered(codec, resource, devices, self._unit_of(resource))
        except ClaimError as error:  # a GPU without UUID or memory: no list can be made
            fields = {"resource": resource, "err": str(error)}
            log.error("resource not offered", extra=fields)  # noqa: TRY400  # no traceback
            self._listed(resource, None)
            return
        if isinstance(offer, TooLong):
            news = self._refused.get(resource) != offer
            self._refused[resource] = offer
            unit = (offer.fitting_mib or 0) * MIB
            self._rows[resource] = Offer(
                resource, registered=False, list_bytes=offer.longest_bytes, unit_bytes=unit
            )
            self._listed(resource, None)
            if news:
                log.error("list too long", extra={"resource": resource, "detail": str(offer)})
                self._too_long(offer)
            return
        self._refused.pop(resource, None)
        self._rows[resource] = Offer(
            resource,
            registered=False,
            healthy=offer.healthy,
            unhealthy=offer.unhealthy,
            list_bytes=offer.longest_bytes,
        )
        self._listed(resource, offer.message)


def gpu_statuses(devices: Iterable[Device], health: Health) -> tuple[GpuStatus, ...]:
    """The GPUs for the metrics."""
    return tuple(
        GpuStatus(
            device.uuid,
            "" if device.index is None else str(device.index),
            tuple(sorted(reason.value for reason in health.verdict(device.uuid).reasons)),
        )
        for device in devices
    )
