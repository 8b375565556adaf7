"""Rewrites annotations of running pods that do not name the devices of their containers. Pure.

For running pods, annotations follow better sources: the driver's processes, the kubelet and our own
checkpoint; never a shim's files, which their tenant can write. :mod:`.rewriting` has the new
annotations, and checks whether there is room for them.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from reconciler.cluster_index import RUNNING, ClaimReading, ClusterIndex
from reconciler.model import Edit, Finding, Scope
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.findings import PodIndex, edit_pod, of_holding, of_pod, of_statements
from reconciler.rules.running_devices import Rewriter, RunningDevices, is_running
from vgpu.ledger import ConflictKind, DeviceEntry, Holding, Ledger, Statement
from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.registry import registry


class _NodeRepair:
    """What the rules need to repair a node's allocation records."""

    def __init__(self, cluster_index: ClusterIndex, ledger: Ledger, policy: Policy) -> None:
        self.ledger = ledger
        self._hidden = cluster_index.hidden_tenants(ledger.node)
        self.rewriter = Rewriter(cluster_index, ledger)
        self.running_devices = RunningDevices(ledger, self.rewriter.name)
        self._policy = policy

    def finding(
        self,
        rule: Rule,
        cause: Cause,
        pod: Pod,
        *,
        evidence: Iterable[str],
        after: dict[str, str],
        skip_reason: SkipReason | None = None,
    ) -> Finding:
        """A repair, if there is room for it; a report, if nothing can be written.

        It is unknown whether there is room where unreadable objects may hold shares.
        """
        if self._hidden and skip_reason is None:
            skip_reason = SkipReason.INCOMPLETE_VIEW
        excess = self.rewriter.excess(pod, after) if after and skip_reason is None else ""
        action: Edit | None = edit_pod(pod, after) if after else None
        return Finding(
            rule=rule,
            cause=cause,
            object_ref=of_pod(pod),
            evidence=(*evidence, excess) if excess else tuple(evidence),
            grace=self._policy.ages.drift,
            effect=Effect.REPAIR,
            action=action,
            skip_reason=SkipReason.WOULD_OVERBOOK if excess else skip_reason,
        )


def gpu_drift(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Make annotations name the device that a container really has, if there is room on it."""
    return (
        finding for finding in _repairs(cluster_index, policy) if finding.rule is Rule.GPU_DRIFT
    )


def recover(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Mark claims of running containers as assigned; write lost claims again.

    The API server alone shows that a claim was never marked as assigned, but not its device: the
    plugin may have allocated another one.
    """
    if cluster_index.snapshot.scope is Scope.CLUSTER:
        return _seen_from_afar(cluster_index, policy)
    return (finding for finding in _repairs(cluster_index, policy) if finding.rule is Rule.RECOVER)


def _repairs(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Findings of both rules, node by node: together they must not claim more than there is."""
    pod_index = PodIndex(cluster_index)
    for name, ledger in sorted(cluster_index.snapshot.ledgers.items()):
        repair = _NodeRepair(cluster_index, ledger, policy)
        parties: dict[str, list[Statement]] = {}
        for conflict in ledger.conflicts:
            if conflict.kind is ConflictKind.GPU_DIFFERS and conflict.pod is not None:
                parties.setdefault(conflict.pod.uid, []).extend(conflict.statements)
        for uid, statements in sorted(parties.items()):
            known = pod_index.pod(uid)
            if known is not None:
                for reading in cluster_index.readings(known):
                    yield from _drift(known, reading, statements, repair)
        running = [
            pod for pod in cluster_index.snapshot.pods if pod.node == name and pod.phase == RUNNING
        ]
        for pod in sorted(running, key=lambda running_pod: running_pod.ref):
            for reading in cluster_index.readings(pod):
                yield from _unassigned(pod, reading, cluster_index, repair)
            for codec in cluster_index.codecs:
                yield from _unclaimed(pod, codec, cluster_index, repair)


# ---------------------------------------------------------------- on another GPU


def _drift(
    pod: Pod, reading: ClaimReading, statements: Iterable[Statement], repair: _NodeRepair
) -> Iterator[Finding]:
    """One pod's claim in one scheme; :func:`recover` has claims that are only assumed."""
    claim = reading.claim
    if claim is None:
        return
    moved: dict[str, Allocation | None] = {}
    for allocation in claim.allocations:
        holdings = repair.running_devices.of(pod, allocation.container)
        is_assigned = holdings and allocation.phase is Phase.ASSIGNED
        if is_assigned and not repair.running_devices.agrees(allocation, holdings):
            moved[allocation.container] = repair.running_devices.moved(allocation, holdings)
    if not moved:
        return
    allocations = [moved.get(allocation.container, allocation) for allocation in claim.allocations]
    kept = tuple(allocation for allocation in allocations if allocation is not None)
    after: dict[str, str] = {}
    if registry().row(reading.codec).repair and len(kept) == len(allocations):
        new = structs.replace(claim, allocations=kept)
        after = repair.rewriter.fewest_edits(pod, reading.codec, new)
    evidence = of_statements(statements)
    yield repair.finding(Rule.GPU_DRIFT, Cause.GPU_DIFFERS, pod, evidence=evidence, after=after)


# ---------------------------------------------------------------- forgotten


def _seen_from_afar(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Findings from the API server alone; pods whose claims are marked as assigned are not read."""
    reservation_keys, allocated = registry().reservation_keys, registry().allocated_marks
    for pod in cluster_index.snapshot.pods:
        if pod.phase != RUNNING or not pod.node or reservation_keys.isdisjoint(pod.annotations):
            continue
        if allocated.isdisjoint(pod.annotations.items()):
            for reading in cluster_index.readings(pod):
                gpus = _registered(reading.codec, cluster_index.nodes.get(pod.node))
                ledger = Ledger(pod.node, tuple(map(DeviceEntry, gpus)))
                yield from _unassigned(
                    pod, reading, cluster_index, _NodeRepair(cluster_index, ledger, policy)
                )


def _registered(codec: SchemeCodec, node: Node | None) -> tuple[Device, ...]:
    try:
        return () if node is None else codec.devices(node)
    except ClaimError:
        return ()


def _unassigned(
    pod: Pod, reading: ClaimReading, cluster_index: ClusterIndex, repair: _NodeRepair
) -> Iterator[Finding]:
    """A claim that is still assumed, although all its containers run."""
    claim = reading.claim
    if claim is None or registry().row(reading.codec).repair is None or not _is_kept(pod, claim):
        return
    allocations: list[Allocation] = []
    proof: list[Holding] = []
    proven = True
    for allocation in claim.allocations:
        holdings = repair.running_devices.of(pod, allocation.container)
        moved = repair.running_devices.moved(allocation, holdings) if holdings else None
        proven = proven and (moved is not None or not is_running(pod, allocation.container))
        allocations.append(structs.replace(moved or allocation, phase=Phase.ASSIGNED))
        proof += holdings
    new = structs.replace(
        claim,
        allocations=tuple(allocations),
        assigned_at=_served_at(pod, cluster_index),
        unserved=(),
        failed=False,
    )
    after = repair.rewriter.edits(pod, reading.codec, new)
    evidence = (
        f"it runs, but by {', '.join(reading.codec.claim_keys(pod))} it waits for its devices",
        *map(of_holding, proof),
    )
    skip_reason = None if proven else SkipReason.NO_NODE_EVIDENCE
    cause = Cause.RUNS_UNASSIGNED
    yield repair.finding(
        Rule.RECOVER, cause, pod, evidence=evidence, after=after, skip_reason=skip_reason
    )


def _is_kept(pod: Pod, claim: Claim) -> bool:
    """Whether a part of the claim is still assumed, and all containers of the claim run.

    Init containers have run by then: the others start after them.
    """
    inits = {container.name for container in pod.containers if container.kind is ContainerKind.INIT}
    return any(container.phase is Phase.ASSUMED for container in claim.allocations) and all(
        container.container in inits or is_running(pod, container.container)
        for container in claim.allocations
    )


def _unclaimed(
    pod: Pod, codec: SchemeCodec, cluster_index: ClusterIndex, repair: _NodeRepair
) -> Iterator[Finding]:
    """Containers that the kubelet has placed, and whose devices no annotation names."""
    reading = next((read for read in cluster_index.readings(pod) if read.codec is codec), None)
    requests = _asked(pod, codec)
    claimed = (
        {allocation.container for allocation in reading.claim.allocations}
        if reading and reading.claim
        else set()
    )
    missing = [request for request in requests if request.container not in claimed]
    if not missing or (reading is None and _is_silent(pod, codec, repair.ledger)):
        return
    allocations: list[Allocation] = []
    proof: list[Holding] = []
    for request in requests:
        holdings = repair.running_devices.of(pod, request.container)
        in_scheme = all(holding.scheme is codec.scheme for holding in holdings)
        if not in_scheme or sum(holding.slots for holding in holdings) != request.count:
            return
        shares = _shares(codec, request, holdings)
        allocations.append(Allocation(request.container, shares, Phase.ASSIGNED))
        proof += holdings
    new = Claim(
        scheme=codec.scheme,
        pod=pod.ref,
        node=pod.node,
        allocations=tuple(allocations),
        assigned_at=_served_at(pod, cluster_index),
    )
    after = repair.rewriter.edits(pod, codec, new)
    error = reading.error if reading else None
    names = ", ".join(request.container for request in missing)
    evidence = (
        str(error) if error else f"no annotation names the device of {names}",
        *map(of_holding, proof),
    )
    cause = Cause.MALFORMED if error else Cause.RUNS_UNCLAIMED
    yield repair.finding(Rule.RECOVER, cause, pod, evidence=evidence, after=after)


def _asked(pod: Pod, codec: SchemeCodec) -> Sequence[Request]:
    """The requests of the pod's running containers; none if unreadable or without a repair."""
    read_only = registry().read_only_resources
    old = any(not read_only.isdisjoint(container.limits) for container in pod.containers)
    if registry().row(codec).repair is None or old:
        return ()
    try:
        return [
            container
            for container in codec.requests(pod)
            if container.kind is not ContainerKind.INIT
        ]
    except ClaimError:
        return ()


def _is_silent(pod: Pod, codec: SchemeCodec, ledger: Ledger) -> bool:
    """Whether the pod's plugin would have written nothing, since there is only one GPU."""
    gpus = tuple(entry.device for entry in ledger.devices if not entry.device.parent)
    return codec.sole_gpu(pod, gpus) is not None


def _shares(codec: SchemeCodec, request: Request, holdings: Iterable[Holding]) -> tuple[Share, ...]:
    """The requested shares; memory that was left to the scheduler is taken as enforced."""
    row = registry().row(codec)
    cores = request.cores_milli if row.shares_cores else None
    shares = []
    for holding in holdings:
        memory = request.memory_bytes
        enforced = holding.share.memory_bytes
        if memory is None and enforced is not None and row.repair and row.repair.sized_as_enforced:
            memory = enforced // holding.slots
        shares += [Share(holding.share.device, memory, cores)] * holding.slots
    return tuple(shares)


def _served_at(pod: Pod, cluster_index: ClusterIndex) -> float:
    """When the plugin must have served the pod: the kubelet calls it at the pod's admission."""
    times = (pod.started_at, pod.scheduled_at, pod.created_at)
    return next((time for time in times if time is not None), cluster_index.now)
