"""The join: what each source says of a container on a device, put together without a guess.

Pure. The driver names processes by host pid, the kernel names a pid's container, the kubelet's
log folders name the container's pod, and the shim's region names its container by its folder.
Where a link of that chain is missing the value is absent; nothing is shared out by size or order.
"""

from collections.abc import Iterable, Mapping

from exporter.accounting import account
from exporter.allocations import by_pod
from exporter.credibility import Credibility
from exporter.view import (
    Attribution,
    ContainerRow,
    GpuRow,
    Orphan,
    ShareRow,
)
from vgpu.facts import ContainerName, Gpu, Grant, LimitFile, ProcessOwner, Region, RegionProcess
from vgpu.kube.objects import TERMINAL_PHASES
from vgpu.ledger import Holding, Ledger
from vgpu.ledger.from_node import bus_id, container_name
from vgpu.ledger.usage import usages
from vgpu.model import Phase, PodRef, Scheme, Source
from vgpu.reasons import Reason, Rejection
from vgpu.schemes.gpushare import codec as gpushare
from vgpu.schemes.volcano import codec as volcano
from vgpu.schemes.volcano.hami_core import LAYOUTS
from vgpu.sources.observation import Observation

SLOT_DEAD = 0
"""A slot whose process ended: the shim clears its status but not what it accounted."""

RESOURCE_SCHEMES: Mapping[str, Scheme] = {
    "volcano.sh/vgpu-number": Scheme.VOLCANO,
    "aliyun.com/gpu-mem": Scheme.GPUSHARE,
    "tencent.com/vcuda-core": Scheme.GAIA,
}
"""The binding resource of each scheme, as the kubelet's checkpoint names it."""


def attribute(
    observation: Observation,
    gpushare_unit_bytes: int | None = None,
    ledger: Ledger | None = None,
) -> Attribution:
    """Join one observation; ``gpushare_unit_bytes`` is what a unit of aliyun.com/gpu-mem means.

    The ledger of the same observation decides on schemes and phases, and on what of a tenant's
    word cannot be.
    """
    join = _Join(observation, gpushare_unit_bytes, ledger)
    join.add_regions()
    join.add_grants()
    join.add_own()
    join.add_limits()
    join.add_bare_regions()
    join.add_processes()
    if ledger is not None:
        join.settle(ledger)
    return join.result()


class _Join:
    """The rows under construction; one method a source, in the order of their trust."""

    def __init__(
        self, seen: Observation, gpushare_unit_bytes: int | None, ledger: Ledger | None
    ) -> None:
        self.seen = seen
        self.credible = Credibility(ledger, seen.at, self.reject)
        self.gpushare_unit_bytes = gpushare_unit_bytes
        self.containers: dict[tuple[str, str], ContainerRow] = {}
        self.shares: dict[tuple[str, str, str], ShareRow] = {}
        self.orphans: list[Orphan] = []
        self.released: list[Orphan] = []
        self.rejected: list[tuple[str, Rejection]] = []
        self.claims: dict[tuple[str, int], set[str]] = {}
        self.unsized: set[str] = set()
        self.region_of: dict[tuple[str, str], str] = {}
        gpu = seen.gpu
        self.gpus: dict[str, Gpu] = {g.uuid: g for g in gpu.gpus} if gpu else {}
        cards = [g for g in self.gpus.values() if not g.parent]
        self.by_index = {g.index: g.uuid for g in cards}
        self.by_bus = {bus_id(g.info.get("pci_bus_id", "")): g.uuid for g in cards}
        self.by_bus.pop("", None)
        complete = gpu is not None and gpu.complete
        self.known_devices = frozenset((*self.gpus, *gpu.lost)) if gpu and complete else None
        kubelet = seen.kubelet
        self.pods: Mapping[str, PodRef] = kubelet.pods if kubelet else {}
        self.named: Mapping[str, ContainerName] = kubelet.containers if kubelet else {}
        self.names_in: dict[str, set[str]] = {}
        for known in self.named.values():
            self.names_in.setdefault(known.pod_uid, set()).add(known.container)
        self.statuses = seen.pods.statuses if seen.pods else None
        self.finished = seen.pods.finished if seen.pods else frozenset[tuple[str, str]]()
        self.phases = {s.ref.uid: s.phase for s in self.statuses or ()}
        self.grants: dict[tuple[str, str], list[Grant]] = {}
        for grant in (kubelet.grants if kubelet else None) or ():
            self.grants.setdefault((grant.pod_uid, grant.container), []).append(grant)
        own = seen.own.statements if seen.own else ()
        self.own = {(said.pod.uid, said.container): said for said in own}
        process = seen.process
        self.owners = process.owners if process and process.sees_host else None
        self.live_pods = process.live_pods if process else None
        self.uids: dict[tuple[str, str], list[str]] = {}
        for uid, ref in self.pods.items():
            if self.alive(uid) is not False:
                self.uids.setdefault((ref.namespace, ref.name), []).append(uid)

    # ------------------------------------------------------------ what is alive

    @property
    def knows_life(self) -> bool:
        """Whether regions were read, and it can be told which of their pods live or lived here."""
        told = self.live_pods is not None or self.statuses is not None
        kubelet = self.seen.kubelet
        return self.seen.shim is not None and told and kubelet is not None and kubelet.named

    def alive(self, pod_uid: str) -> bool | None:
        """Whether the pod has containers here; None if no source can tell."""
        if self.live_pods is not None:
            return pod_uid in self.live_pods
        phase = self.phases.get(pod_uid)
        return None if phase is None else phase not in TERMINAL_PHASES

    def is_over(self, pod_uid: str, container: str) -> bool:
        """Whether the container's pod has ended, or it is an init container that has."""
        return self.alive(pod_uid) is False or (pod_uid, container) in self.finished

    def name(self, pod_uid: str) -> tuple[str, str]:
        ref = self.pods.get(pod_uid)
        return (ref.namespace, ref.name) if ref else ("", "")

    def container(
        self, pod_uid: str, container: str, scheme: Scheme, source: Source
    ) -> ContainerRow:
        """The row of a container; the first source to speak of it is the one that is named."""
        row = self.containers.get((pod_uid, container))
        if row is None:
            namespace, pod = self.name(pod_uid)
            row = ContainerRow(pod_uid, container, namespace, pod, scheme, source)
            self.containers[pod_uid, container] = row
        elif row.scheme is Scheme.NONE:
            row.scheme = scheme
        return row

    def share(self, row: ContainerRow, device: str) -> ShareRow:
        key = (row.pod_uid, row.container, device)
        share = self.shares.get(key)
        if share is None:
            gpu = self.gpus.get(device)
            share = ShareRow(
                row.pod_uid,
                row.container,
                device,
                row.namespace,
                row.pod,
                row.scheme,
                device_index=gpu.index if gpu else None,
                mig=gpu.info if gpu and gpu.parent else None,
            )
            self.shares[key] = share
        return share

    def reject(self, collector: str, subject: str, reason: Reason, detail: str) -> None:
        self.rejected.append((collector, Rejection(subject, reason, detail)))

    def is_unknown(self, device: str) -> bool:
        """Whether the node does not have it; a driver that missed a GPU cannot tell."""
        return self.known_devices is not None and device not in self.known_devices

    # ------------------------------------------------------------ shim regions

    def add_regions(self) -> None:
        for file in self.seen.shim.files if self.seen.shim else ():
            if self.is_over(file.pod_uid, file.container):
                namespace, pod = self.name(file.pod_uid)
                leftover = Orphan(file.path, file.pod_uid, file.container, namespace, pod)
                if pod or file.pod_uid in self.phases:
                    self.released.append(leftover)
                    scheme, source = Scheme.VOLCANO, Source.SHIM
                    row = self.container(file.pod_uid, file.container, scheme, source)
                    row.layout, row.phase = file.region.layout, Phase.RELEASED
                else:
                    self.orphans.append(leftover)
                continue
            self.add_region(file.pod_uid, file.container, file.region, file.path)

    def add_bare_regions(self) -> None:
        for owner, path, region in self.seen.process.bare if self.seen.process else ():
            name = container_name(owner, self.named)
            if (owner.pod_uid, name) not in self.region_of:  # the plugin's region is the better one
                self.add_region(owner.pod_uid, name, region, path)

    def add_region(self, pod_uid: str, container: str, region: Region, path: str) -> None:
        first = self.region_of.setdefault((pod_uid, container), path)
        if first != path:
            self.reject("shim", path, Reason.AMBIGUOUS, f"this container already has {first}")
            return
        row = self.container(pod_uid, container, Scheme.VOLCANO, Source.SHIM)
        row.layout = region.layout
        row.blocked = region.recent_kernel < 0
        row.priority = self.credible.priority(region, path)
        row.last_kernel_time = self.credible.last_kernel_time(region, path)
        granted = self.granted_devices(pod_uid, container)
        told_utilization = LAYOUTS[region.layout].util is not None
        living = [slot for slot in region.processes if self.slot_is_live(slot, pod_uid)]
        for slot in living:
            if slot.host_pid > 0:
                self.claims.setdefault((pod_uid, slot.host_pid), set()).add(container)
        for position, device in enumerate(region.devices):
            uuid = device.uuid
            if self.is_unknown(uuid):
                self.reject("shim", path, Reason.UNKNOWN_DEVICE, uuid)
                continue
            if granted is not None and uuid not in granted:
                self.reject("shim", path, Reason.DEVICE_NOT_ALLOCATED, uuid)
                continue
            whose = "shim", path
            if granted is None and self.credible.is_forged(whose, (pod_uid, container), uuid):
                continue
            share = self.share(row, uuid)
            share.vdevice = position
            share.unlimited = device.memory_limit_bytes == 0
            share.limit_bytes = self.credible.limit(whose, uuid, device.memory_limit_bytes)
            share.core_limit_percent = device.core_limit_percent or None
            share.last_kernel_time = row.last_kernel_time
            told = account(region.processes, living, position, told_utilization)
            share.accounted = self.credible.use(whose, uuid, told)

    def slot_is_live(self, slot: RegionProcess, pod_uid: str) -> bool:
        """Dead slots say so themselves; a killed one's host pid is gone, or is another pod's."""
        if slot.status == SLOT_DEAD:
            return False
        if slot.host_pid <= 0 or self.owners is None:
            return True
        owner = self.owners.get(slot.host_pid)
        return owner is not None and (not pod_uid or owner.pod_uid == pod_uid)

    def granted_devices(self, pod_uid: str, container: str) -> frozenset[str] | None:
        """The UUIDs that the plugin made visible; None if neither answer nor checkpoint tells."""
        for grant in self.grants.get((pod_uid, container), ()):
            uuids = volcano.visible_uuids(grant.env)
            if uuids:
                return frozenset(uuids)
        said = self.own.get((pod_uid, container))
        return frozenset(share.device for share in said.shares) if said else None

    # ------------------------------------------------------------ the kubelet's checkpoint

    def add_grants(self) -> None:
        for (pod_uid, container), grants in self.grants.items():
            if not self.alive(pod_uid) or (pod_uid, container) in self.finished:
                continue  # dead entries in the checkpoint are normal, so it proves no life
            for grant in grants:
                scheme = scheme_of(grant)
                if scheme is None:
                    continue
                for device, limit in self.granted_shares(grant, scheme):
                    row = self.container(pod_uid, container, scheme, Source.CHECKPOINT)
                    share = self.share(row, device)
                    if share.limit_bytes is None and not share.unlimited:
                        share.limit_bytes = limit

    def granted_shares(self, grant: Grant, scheme: Scheme) -> list[tuple[str, int | None]]:
        """(device, memory limit in bytes) for each GPU that the plugin's answer names."""
        if scheme is Scheme.GPUSHARE:
            told = gpushare.limits_from_env(grant.env)
            if told is None:
                return []
            device = told.uuid or self.by_index.get(told.index if told.index is not None else -1)
            units, unit = told.container_units, self.gpushare_unit_bytes
            limit = None if units is None or unit is None else units * unit
            return [(device, limit)] if device else []
        uuids = volcano.visible_uuids(grant.env)
        return [(uuid, volcano.memory_limit(grant.env, i)) for i, uuid in enumerate(uuids)]

    # ------------------------------------------------------------ our own plugin's checkpoint

    def add_own(self) -> None:
        """What the kubelet's answers do not say where the runtime knows CDI."""
        for (pod_uid, container), said in self.own.items():
            if not self.alive(pod_uid) or (pod_uid, container) in self.finished:
                continue
            for given in said.shares:
                if self.is_unknown(given.device):
                    self.reject("plugin", said.where, Reason.UNKNOWN_DEVICE, given.device)
                    continue
                row = self.container(pod_uid, container, said.scheme, Source.OWN_CHECKPOINT)
                share = self.share(row, given.device)
                if share.limit_bytes is None and not share.unlimited:
                    share.limit_bytes = given.memory_bytes

    # ------------------------------------------------------------ limit files

    def add_limits(self) -> None:
        for limit in self.seen.limits.limits if self.seen.limits else ():
            pod_uid = limit.pod_uid or self.only_uid(limit)
            if not pod_uid or self.alive(pod_uid) is False:
                continue
            device = limit.device or self.by_bus.get(bus_id(limit.pci_bus_id), "")
            if self.is_unknown(device):
                told = device or limit.pci_bus_id
                self.reject("limits", limit.path, Reason.UNKNOWN_DEVICE, told)
                continue
            if not device:
                continue
            name = self.limited_container(pod_uid, limit)
            if name is None:
                self.reject("limits", limit.path, Reason.FORGED, f"no container {limit.container}")
                continue
            if (pod_uid, name) in self.finished:
                continue
            whose = "limits", limit.path
            writable = limit.scheme is Scheme.GAIA  # it lies in a folder of the container's
            if writable and self.credible.is_forged(whose, (pod_uid, name), device):
                continue
            if limit.memory_bytes and not self.credible.limit(whose, device, limit.memory_bytes):
                continue
            row = self.container(pod_uid, name, limit.scheme, Source.LIMIT_FILE)
            self.set_limit(self.share(row, device), limit)

    def only_uid(self, limit: LimitFile) -> str:
        """The UID of the pod that a limit file names; "" if none is alive."""
        uids = self.uids.get((limit.namespace, limit.pod), [])
        if len(uids) > 1:
            name = f"{limit.namespace}/{limit.pod}"
            self.reject("limits", limit.path, Reason.AMBIGUOUS, f"{len(uids)} pods {name}")
        return uids[0] if len(uids) == 1 else ""

    def limited_container(self, pod_uid: str, limit: LimitFile) -> str | None:
        """The container of a limit file: by its id, else by a name that the kubelet knows too.

        None if the kubelet knows the pod's containers and this is none of them; the tenant can
        write the file.
        """
        named = self.named.get(limit.container_id)
        if named is not None:
            return named.container
        names = self.names_in.get(pod_uid, set())
        if not limit.container:
            return next(iter(names)) if len(names) == 1 else ""
        return limit.container if not names or limit.container in names else None

    @staticmethod
    def set_limit(share: ShareRow, limit: LimitFile) -> None:
        share.limit_bytes = limit.memory_bytes
        share.unlimited = limit.memory_bytes is None
        share.core_limit_percent = limit.cores_percent
        share.core_request_percent = limit.cores_request_percent

    # ------------------------------------------------------------ the driver's processes

    def add_processes(self) -> None:
        """Add up the driver's processes by container; a container without any uses 0."""
        gpu, owners = self.seen.gpu, self.owners
        if gpu is None or owners is None:
            return
        for share in self.shares.values():
            if share.device in gpu.processes_known:
                share.used_bytes = share.processes = 0
            if share.device in gpu.utilization_known:
                share.sm_utilization = 0.0
        for usage in usages(gpu, owners, self.whose):
            row = self.container(usage.pod_uid, usage.container, Scheme.NONE, Source.PROCESS)
            share = self.share(row, usage.device)
            share.used_bytes, share.processes = usage.used_bytes, len(usage.pids)
            if usage.used_bytes is None:
                self.unsized.add(usage.device)
            if usage.device in gpu.utilization_known:
                busy = (gpu.utilization.get((pid, usage.device), 0.0) for pid in usage.pids)
                share.sm_utilization = sum(busy)
        self.withdraw_guesses()

    def whose(self, owner: ProcessOwner, pid: int) -> str:
        """The container of a process; of an unnamed one in a pod, what a region of it claims."""
        name = container_name(owner, self.named)
        return self.claimant(owner.pod_uid, pid) if owner.pod_uid and not name else name

    def claimant(self, pod_uid: str, pid: int) -> str:
        """The one container of the pod whose region names this pid; "" if none or several do."""
        claimants = self.claims.get((pod_uid, pid), set())
        if len(claimants) > 1:
            told = f"pid {pid} is claimed by {', '.join(sorted(claimants))}"
            self.reject("shim", pod_uid, Reason.FORGED, told)
        return next(iter(claimants)) if len(claimants) == 1 else ""

    def withdraw_guesses(self) -> None:
        """A process of an unnamed container may be any of its pod's: their 0 is not known."""
        unnamed = {
            (s.pod_uid, s.device) for s in self.shares.values() if not s.container and s.processes
        }
        for share in self.shares.values():
            if share.container and (share.pod_uid, share.device) in unnamed:
                share.used_bytes = share.processes = share.sm_utilization = None

    # ------------------------------------------------------------ the ledger

    def settle(self, ledger: Ledger) -> None:
        """Scheme and phase as the ledger has them; who was only promised a share gets a row."""
        rows: dict[str, list[ContainerRow]] = {}
        for row in self.containers.values():
            rows.setdefault(row.pod_uid, []).append(row)
        for pod_uid, held in by_pod(ledger.holdings).items():
            of_pod = rows.get(pod_uid, [])
            for row in of_pod:
                holding = held.get(row.container) or held.get("")
                if holding is not None:
                    self.settle_row(row, holding)
            names = {row.container for row in of_pod}
            for name, holding in held.items():
                absent = name not in names if name else not of_pod
                if absent and (pod_uid, name) not in self.finished:
                    ref, scheme, source = holding.pod, holding.scheme, holding.source
                    row = ContainerRow(pod_uid, name, ref.namespace, ref.name, scheme, source)
                    self.containers[pod_uid, name] = row
                    self.settle_row(row, holding)

    @staticmethod
    def settle_row(row: ContainerRow, holding: Holding) -> None:
        if holding.scheme is not Scheme.NONE:
            row.scheme = holding.scheme
        if row.phase is not Phase.RELEASED:
            row.phase = holding.phase

    # ------------------------------------------------------------ the result

    def result(self) -> Attribution:
        for share in self.shares.values():
            share.scheme = self.containers[share.pod_uid, share.container].scheme
        return Attribution(
            gpus=tuple(self.gpu_rows()),
            containers=tuple(self.containers.values()),
            shares=tuple(self.shares.values()),
            orphans=tuple(self.orphans) if self.knows_life else None,
            released=tuple(self.released) if self.knows_life else None,
            statuses=self.statuses,
            rejected=tuple(self.rejected),
        )

    def gpu_rows(self) -> Iterable[GpuRow]:
        gpu = self.seen.gpu
        if gpu is None:
            return
        owners = self.owners
        attributed: dict[str, int] = {}
        for share in self.shares.values():
            so_far = attributed.get(share.device, 0)
            attributed[share.device] = so_far + (share.used_bytes or 0)
        strangers: dict[str, int] = {}
        vanished: set[str] = set()
        for process in gpu.processes:
            if owners is not None and process.pid not in owners:
                vanished.add(process.device)  # it ended meanwhile: whose its memory was is unknown
            elif owners is not None and owners[process.pid] is None:
                strangers[process.device] = strangers.get(process.device, 0) + 1
        unclear = self.unsized | vanished | {g.parent for g in gpu.gpus if g.parent}
        for device in gpu.gpus:
            uuid, used = device.uuid, device.readings.get(("memory_used_bytes",))
            known = owners is not None and uuid in gpu.processes_known and uuid not in unclear
            if not known or used is None:
                yield GpuRow(device)
                continue
            total = attributed.get(uuid, 0)
            yield GpuRow(
                device,
                unattributed_bytes=int(used) - total,
                unattributed_processes=strangers.get(uuid, 0),
                attributed_bytes=total,
            )
        for uuid in gpu.lost:
            yield GpuRow(Gpu(uuid, -1, {}, {}), answers=False)


def scheme_of(grant: Grant) -> Scheme | None:
    """Whose grant this is; nvidia.com/gpu is HAMi's only with HAMi's environment."""
    if grant.resource == "nvidia.com/gpu":
        return Scheme.VOLCANO if volcano.is_shared(grant.env) else Scheme.NONE
    return RESOURCE_SCHEMES.get(grant.resource)
