"""The use that the shims' regions report for their containers, if it is possible. Pure."""

from collections.abc import Collection, Mapping

from vgpu.ledger.container_usage import LeftoverRegion, ShareUsage, UsageBuilder
from vgpu.ledger.owners import Place, container_name
from vgpu.ledger.slots import Slots, account
from vgpu.model.facts import ContainerName, ProcessOwner, ProcessSample, RegionDevice, RegionFile
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.reasons import Reason


class RegionUsage:
    """Adds regions to the containers of a node.

    Attributes:
        orphans, released: regions of unknown pods, and of known containers that have ended.
    """

    def __init__(
        self,
        builder: UsageBuilder,
        process: ProcessSample | None,
        names: Mapping[str, ContainerName],
        allocated: Mapping[Place, Collection[str]],
    ) -> None:
        """``names`` is by container id.

        ``allocated`` are the devices that the kubelet or our own plugin allocated to containers.
        """
        self.orphans: list[LeftoverRegion] = []
        self.released: list[LeftoverRegion] = []
        self._builder = builder
        self._slots = Slots(process, names)
        self._names = names
        self._allocated = allocated
        self._claims: dict[tuple[str, int], set[str]] = {}

    def add_on_node(self, file: RegionFile, first: RegionFile) -> None:
        """Add a region that the plugin created; ``first`` is the container's region that counts."""
        if self._builder.has_ended((file.pod_uid, file.container)):
            self._add_leftover(file)
        elif file is not first:
            detail = f"this container already has {first.path}"
            self._builder.reject(Source.SHIM, file.path, Reason.AMBIGUOUS, detail)
        else:
            self.add(file)

    def _add_leftover(self, file: RegionFile) -> None:
        uid, builder = file.pod_uid, self._builder
        pod = builder.pod(uid)
        leftover = LeftoverRegion(file.path, pod or PodRef(uid, "", ""), file.container)
        if pod is None and uid not in (builder.presence.phases or {}):
            self.orphans.append(leftover)
            return
        self.released.append(leftover)
        container = builder.container((uid, file.container), Scheme.VOLCANO, Source.SHIM)
        container.layout, container.phase = file.region.layout, Phase.RELEASED

    def add(self, file: RegionFile) -> None:
        """Add a region of a container that has not ended."""
        place, region, credible = (
            (file.pod_uid, file.container),
            file.region,
            self._builder.credible,
        )
        container = self._builder.container(place, Scheme.VOLCANO, Source.SHIM)
        if container.layout:  # the region of another container without a name
            return
        container.layout = region.layout
        container.blocked = region.recent_kernel < 0
        container.priority = credible.priority(region, file.path)
        container.last_kernel_time = credible.last_kernel_time(region, file.path)
        host_pids = [self._slots.host_pid(slot, file) for slot in region.processes]
        for host_pid in filter(None, host_pids):
            self._claims.setdefault((file.pod_uid, host_pid), set()).add(file.container)
        for position, device in enumerate(region.devices):
            if self._may_have(file, device.uuid):
                share = container.share(device.uuid)
                share.vdevice = position
                self._limit(share, file.path, device)
                accounted = account(file, host_pids, position)
                share.accounted = credible.use((Source.SHIM, file.path), device.uuid, accounted)
                credible.counters(file, position)

    def _limit(self, share: ShareUsage, path: str, device: RegionDevice) -> None:
        memory, credible = device.memory_limit_bytes, self._builder.credible
        share.unlimited = memory == 0
        share.limit_bytes = credible.limit((Source.SHIM, path), device.uuid, memory)
        share.core_limit_percent = device.core_limit_percent or None

    def _may_have(self, file: RegionFile, device: str) -> bool:
        """Whether nothing contradicts that the region's container has the device."""
        place, builder = (file.pod_uid, file.container), self._builder
        allocated = self._allocated.get(place)
        if builder.is_missing(device):
            builder.reject(Source.SHIM, file.path, Reason.UNKNOWN_DEVICE, device)
        elif allocated is None:
            return not builder.credible.is_forged((Source.SHIM, file.path), place, device)
        elif device not in allocated:
            builder.reject(Source.SHIM, file.path, Reason.DEVICE_NOT_ALLOCATED, device)
        else:
            return True
        return False

    def container_of(self, owner: ProcessOwner, pid: int) -> str:
        """The container of a process; a region that claims it names an unnamed one in a pod.

        Several regions that claim the same process are no evidence.
        """
        name = container_name(owner, self._names)
        if name or not owner.pod_uid:
            return name
        containers = sorted(self._claims.get((owner.pod_uid, pid), ()))
        if len(containers) > 1:
            detail = f"pid {pid} is claimed by {', '.join(containers)}"
            self._builder.reject(Source.SHIM, owner.pod_uid, Reason.FORGED, detail)
        return containers[0] if len(containers) == 1 else ""
