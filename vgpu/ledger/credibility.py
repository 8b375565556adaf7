"""What of a tenant's word can be: numbers within bounds, and devices that nobody else contradicts.

Pure. A region can be written by its tenant, and so can gpu-manager's limit file. What the kubelet
or our own plugin gave is known where their checkpoints can be read; else the ledger reports what
the driver, pod-resources and the annotations say.
"""

from collections.abc import Callable, Iterable

import msgspec

from vgpu.facts import Region
from vgpu.ledger.bounds import Bounds
from vgpu.ledger.entries import Holding, Ledger
from vgpu.ledger.slots import Accounted
from vgpu.ledger.statements import LIMITS, PARTIAL, Statement
from vgpu.model import Source
from vgpu.reasons import Reason

CLOCK_SLACK_SECONDS = 86_400
"""The library's time may be ahead of ours by so much: somebody has set a clock."""

_File = tuple[Source, str]
"""The source that read it, and its path."""

_Place = tuple[str, str]
"""Pod UID and container."""


class Credibility:
    """Tells what can be from what cannot, and reports it of the latter."""

    def __init__(
        self,
        placements: "Placements",
        bounds: Bounds,
        at: float,
        reject: Callable[[Source, str, Reason, str], None],
    ) -> None:
        """``at`` is now in unix seconds; ``reject`` takes whose word, path, reason, detail."""
        self._bounds = bounds
        self._placements = placements
        self._at = at
        self._reject = reject

    def is_forged(self, file: _File, place: _Place, device: str) -> bool:
        """Whether the file names a device where nobody else has its container."""
        contradiction = self._placements.contradiction(*place, device)
        if contradiction:
            self._reject(*file, Reason.FORGED, f"{device}, but {contradiction}")
        return bool(contradiction)

    def limit(self, file: _File, device: str, limit: int) -> int | None:
        """The limit in bytes, None if there is none or it is more than can be."""
        return (
            None if self._absurd(file, self._bounds.limit_error(device, limit)) else limit or None
        )

    def use(self, file: _File, device: str, accounted: Accounted) -> Accounted | None:
        """What is accounted, without what is more than can be."""
        if self._absurd(file, self._bounds.use_error(device, accounted.total)):
            return None
        error = self._bounds.use_error(device, accounted.phantom or 0)
        if self._absurd(file, error and f"dead processes have {error}"):
            return msgspec.structs.replace(accounted, phantom=None)
        return accounted

    def priority(self, region: Region, path: str) -> int | None:
        """The library takes any number of its environment; HAMi's monitor, none below 0."""
        error = "" if region.priority >= 0 else f"priority {region.priority}"
        return None if self._absurd((Source.SHIM, path), error) else region.priority

    def last_kernel_time(self, region: Region, path: str) -> int | None:
        """When the last kernel was launched, unless that is still to come."""
        at = region.last_kernel_time
        ahead = at is not None and at > self._at + CLOCK_SLACK_SECONDS
        error = f"a last kernel at {at}, unix time" if ahead else ""
        return None if self._absurd((Source.SHIM, path), error) else at

    def _absurd(self, file: _File, error: str) -> bool:
        if error:
            self._reject(*file, Reason.IMPLAUSIBLE, error)
        return bool(error)


class Placements:
    """Where a ledger has each container."""

    def __init__(self, ledger: Ledger) -> None:
        self._holdings: dict[_Place, dict[str, Holding]] = {}
        self._elsewhere: dict[_Place, list[Statement]] = {}
        self._names: dict[str, set[str]] = {}
        for holding in ledger.holdings:
            place = holding.pod.uid, holding.container
            self._holdings.setdefault(place, {})[holding.share.device] = holding
            self._names.setdefault(holding.pod.uid, set()).add(holding.container)
        for entry in ledger.devices:
            for said in entry.disputed:
                self._elsewhere.setdefault((said.pod.uid, said.container), []).append(said)

    def contradiction(self, pod_uid: str, container: str, device: str) -> str:
        """Who has the container on other devices only, and on which; "" if nobody has."""
        holdings = self._holdings.get((pod_uid, container), {})
        here = holdings.get(device)
        if here is None:  # better words have decided against this one
            return _placed(at for at in holdings.values() if at.source not in LIMITS)
        if not LIMITS.issuperset(here.sources):
            return ""
        for said in self._elsewhere.get((pod_uid, container), ()):
            if said.source not in PARTIAL:
                return f"{said.source} reports {', '.join(share.device for share in said.shares)}"
        return self._strangers(pod_uid, container)

    def _strangers(self, pod_uid: str, container: str) -> str:
        """Processes of an unnamed container, which is this one if the pod has no other."""
        if self._names.get(pod_uid) != {"", container}:
            return ""
        unnamed = self._holdings[pod_uid, ""].values()
        return _placed(at for at in unnamed if at.sources == (Source.PROCESS,))


def _placed(holdings: Iterable[Holding]) -> str:
    told = (f"{at.source} reports {at.share.device}" for at in holdings if at.share.device)
    return "; ".join(told)
