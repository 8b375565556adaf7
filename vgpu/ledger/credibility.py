"""Which values of a tenant are possible: numbers within bounds, devices that no source contradicts.

Pure. A tenant can write its region and gpu-manager's limit file. What the kubelet or our own plugin
allocated is known where their checkpoints can be read; else the ledger has what the driver,
pod-resources and the annotations report.
"""

from collections.abc import Callable, Iterable

import msgspec

from vgpu.ledger.bounds import Bounds
from vgpu.ledger.entries import Holding, Ledger
from vgpu.ledger.slots import Accounted
from vgpu.ledger.statements import LIMITS, PARTIAL, Statement
from vgpu.model.facts import Region, RegionFile
from vgpu.model.names import Source
from vgpu.model.reasons import Reason

COUNTERS = ("context", "module", "data", "offset", "total")
"""The counters of memory of a process slot."""

LIMITS_READ = ("memory limit", "core limit")
"""The limits of a region's device."""

CLOCK_SLACK_SECONDS = 86_400
"""Maximum lead of the library's time over ours, in seconds: a clock may have been set."""

_File = tuple[Source, str]
"""The source that read it, and its path."""

_Place = tuple[str, str]
"""Pod UID and container."""


class Credibility:
    """Separates possible from impossible values, and reports the impossible ones."""

    def __init__(
        self,
        placements: "Placements",
        bounds: Bounds,
        at: float,
        reject: Callable[[Source, str, Reason, str], None],
    ) -> None:
        """``at`` is now in unix seconds; ``reject`` takes source, path, reason and detail."""
        self._bounds = bounds
        self._placements = placements
        self._at = at
        self._reject = reject

    def is_forged(self, file: _File, place: _Place, device: str) -> bool:
        """Whether the file names a device for which other sources contradict it."""
        contradiction = self._placements.contradiction(*place, device)
        if contradiction:
            self._reject(*file, Reason.FORGED, f"{device}, but {contradiction}")
        return bool(contradiction)

    def limit(self, file: _File, device: str, limit: int | None) -> int | None:
        """The limit in bytes; None if there is none, or more than is possible."""
        return (
            None if self._absurd(file, self._bounds.limit_error(device, limit)) else limit or None
        )

    def use(self, file: _File, device: str, accounted: Accounted) -> Accounted | None:
        """The accounted amounts, without impossible ones."""
        if self._absurd(file, self._bounds.use_error(device, accounted.total or 0)):
            return None
        error = self._bounds.use_error(device, accounted.phantom) if accounted.phantom else ""
        if error:
            self._absurd(file, f"dead processes have {error}")
            return msgspec.structs.replace(accounted, phantom=None)
        return accounted

    def counters(self, file: RegionFile, position: int) -> None:
        """Report the numbers of the device at ``position`` that cannot be, which are absent."""
        device = file.region.devices[position]
        limits = device.memory_limit_bytes, device.core_limit_percent
        wrong = [name for name, limit in zip(LIMITS_READ, limits, strict=True) if limit is None]
        for slot in file.region.processes:
            use = slot.used[position]
            counters = use.context, use.module, use.data, use.offset, use.total
            if None in counters:
                wrong += (
                    f"{name} of pid {slot.pid}"
                    for name, counter in zip(COUNTERS, counters, strict=True)
                    if counter is None
                )
        if wrong:
            self._absurd((Source.SHIM, file.path), f"{', '.join(wrong)} of {device.uuid}")

    def priority(self, region: Region, path: str) -> int | None:
        """The priority: the library accepts any number, HAMi's monitor none below 0."""
        error = "" if region.priority >= 0 else f"priority {region.priority}"
        return None if self._absurd((Source.SHIM, path), error) else region.priority

    def last_kernel_time(self, region: Region, path: str) -> int | None:
        """When the last kernel was launched, in unix seconds; None if that is in the future."""
        at = region.last_kernel_time
        ahead = at is not None and at > self._at + CLOCK_SLACK_SECONDS
        error = f"a last kernel at {at}, unix time" if ahead else ""
        return None if self._absurd((Source.SHIM, path), error) else at

    def _absurd(self, file: _File, error: str) -> bool:
        if error:
            self._reject(*file, Reason.IMPLAUSIBLE, error)
        return bool(error)


class Placements:
    """The devices on which a ledger has each container."""

    def __init__(self, ledger: Ledger) -> None:
        self._holdings: dict[_Place, dict[str, Holding]] = {}
        self._elsewhere: dict[_Place, list[Statement]] = {}
        self._names: dict[str, set[str]] = {}
        for holding in ledger.holdings:
            place = holding.pod.uid, holding.container
            self._holdings.setdefault(place, {})[holding.share.device] = holding
            self._names.setdefault(holding.pod.uid, set()).add(holding.container)
        for entry in ledger.devices:
            for statement in entry.disputed:
                self._elsewhere.setdefault((statement.pod.uid, statement.container), []).append(
                    statement
                )

    def contradiction(self, pod_uid: str, container: str, device: str) -> str:
        """Which sources report the container on other devices only, and on which; "" if none."""
        holdings = self._holdings.get((pod_uid, container), {})
        here = holdings.get(device)
        if here is None:  # more trusted sources have decided against this device
            return _placed(at for at in holdings.values() if at.source not in LIMITS)
        if not LIMITS.issuperset(here.sources):
            return ""
        for statement in self._elsewhere.get((pod_uid, container), ()):
            if statement.source not in PARTIAL:
                devices = ", ".join(share.device for share in statement.shares)
                return f"{statement.source} reports {devices}"
        return self._strangers(pod_uid, container)

    def _strangers(self, pod_uid: str, container: str) -> str:
        """Processes of an unnamed container, which is this one if the pod has no other."""
        if self._names.get(pod_uid) != {"", container}:
            return ""
        unnamed = self._holdings[pod_uid, ""].values()
        return _placed(at for at in unnamed if at.sources == (Source.PROCESS,))


def _placed(holdings: Iterable[Holding]) -> str:
    reports = (f"{at.source} reports {at.share.device}" for at in holdings if at.share.device)
    return "; ".join(reports)
