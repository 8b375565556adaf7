"""Annotations of running pods that do not say where their containers are: rewritten. Pure.

Annotations follow, never lead, for what runs. They are made to say what better sources show: the
driver's processes, the kubelet and our own checkpoint; never a shim's files, which their tenant can
write. What is to be written, and whether there is room for it, is in :mod:`.rewriting`.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from reconciler.cluster_index import RUNNING, ClaimReading, ClusterIndex
from reconciler.model import Edit, Finding, Scope
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.evidence_text import PodIndex, of_holding, of_statements
from reconciler.rules.findings import edit_pod, of_pod
from reconciler.rules.rewriting import Rewriter
from reconciler.rules.running_devices import RunningDevices, is_running
from vgpu.kube.objects import Node, Pod
from vgpu.ledger import ConflictKind, DeviceEntry, Holding, Ledger, Statement
from vgpu.model import (
    Allocation,
    Claim,
    ContainerKind,
    Device,
    Phase,
    Request,
    Share,
)
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.registry import registry


class _NodeRepair:
    """What the rules need to repair a node's books."""

    def __init__(self, cluster_index: ClusterIndex, ledger: Ledger, policy: Policy) -> None:
        self.ledger = ledger
        self._hidden = cluster_index.hidden_tenants(ledger.node)
        self.rewriter = Rewriter(cluster_index, ledger)
        self.whereabouts = RunningDevices(ledger, self.rewriter.name)
        self._policy = policy

    def finding(
        self,
        rule: Rule,
        cause: Cause,
        pod: Pod,
        *,
        evidence: Iterable[str],
        after: dict[str, str],
        objection: SkipReason | None = None,
    ) -> Finding:
        """A repair, if there is room for it; a report, if nothing can be written.

        Whether there is room cannot be told where somebody holds nobody knows what.
        """
        if self._hidden and objection is None:
            objection = SkipReason.INCOMPLETE_VIEW
        excess = self.rewriter.excess(pod, after) if after and objection is None else ""
        action: Edit | None = edit_pod(pod, after) if after else None
        return Finding(
            rule=rule,
            cause=cause,
            subject=of_pod(pod),
            evidence=(*evidence, excess) if excess else tuple(evidence),
            grace=self._policy.ages.drift,
            effect=Effect.REPAIR,
            action=action,
            objection=SkipReason.WOULD_OVERBOOK if excess else objection,
        )


def card_drift(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Make annotations name the device that a container really has, if there is room on it."""
    return (each for each in _repairs(cluster_index, policy) if each.rule is Rule.CARD_DRIFT)


def recover(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Mark as assigned what runs on its device; say anew what annotations have lost.

    From the API server alone it is seen that a promise was never marked as kept, but not on which
    device: the plugin may have taken another one.
    """
    if cluster_index.snapshot.scope is Scope.CLUSTER:
        return _seen_from_afar(cluster_index, policy)
    return (each for each in _repairs(cluster_index, policy) if each.rule is Rule.RECOVER)


def _repairs(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Of both rules, node by node: together they must not book more than there is."""
    pod_index = PodIndex(cluster_index)
    for name, ledger in sorted(cluster_index.snapshot.ledgers.items()):
        repair = _NodeRepair(cluster_index, ledger, policy)
        parties: dict[str, list[Statement]] = {}
        for conflict in ledger.conflicts:
            if conflict.kind is ConflictKind.CARD_DIFFERS and conflict.pod is not None:
                parties.setdefault(conflict.pod.uid, []).extend(conflict.statements)
        for uid, statements in sorted(parties.items()):
            known = pod_index.pod(uid)
            if known is not None:
                for spoken in cluster_index.spoken(known):
                    yield from _drift(known, spoken, statements, repair)
        running = [
            pod for pod in cluster_index.snapshot.pods if pod.node == name and pod.phase == RUNNING
        ]
        for pod in sorted(running, key=lambda each: each.ref):
            for spoken in cluster_index.spoken(pod):
                yield from _unassigned(pod, spoken, cluster_index, repair)
            for codec in cluster_index.codecs:
                yield from _unclaimed(pod, codec, cluster_index, repair)


# ---------------------------------------------------------------- on another GPU


def _drift(
    pod: Pod, spoken: ClaimReading, statements: Iterable[Statement], repair: _NodeRepair
) -> Iterator[Finding]:
    """One pod in one language; what it has only been promised is :func:`recover`'s."""
    claim = spoken.claim
    if claim is None:
        return
    moved: dict[str, Allocation | None] = {}
    for allocation in claim.allocations:
        there = repair.whereabouts.of(pod, allocation.container)
        given = there and allocation.phase is Phase.ASSIGNED
        if given and not repair.whereabouts.agrees(allocation, there):
            moved[allocation.container] = repair.whereabouts.moved(allocation, there)
    if not moved:
        return
    allocations = [moved.get(each.container, each) for each in claim.allocations]
    told = tuple(each for each in allocations if each is not None)
    after: dict[str, str] = {}
    if registry().row(spoken.codec).repair and len(told) == len(allocations):
        new = structs.replace(claim, allocations=told)
        after = repair.rewriter.fewest_edits(pod, spoken.codec, new)
    evidence = of_statements(statements)
    yield repair.finding(Rule.CARD_DRIFT, Cause.CARD_DIFFERS, pod, evidence=evidence, after=after)


# ---------------------------------------------------------------- forgotten


def _seen_from_afar(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Nearly all promises were kept: nothing else of those is read."""
    promised, kept = registry().promised_keys, registry().kept_marks
    for pod in cluster_index.snapshot.pods:
        if pod.phase != RUNNING or not pod.node or promised.isdisjoint(pod.annotations):
            continue
        if kept.isdisjoint(pod.annotations.items()):
            for spoken in cluster_index.spoken(pod):
                cards = _registered(spoken.codec, cluster_index.nodes.get(pod.node))
                ledger = Ledger(pod.node, tuple(map(DeviceEntry, cards)))
                yield from _unassigned(
                    pod, spoken, cluster_index, _NodeRepair(cluster_index, ledger, policy)
                )


def _registered(codec: SchemeCodec, node: Node | None) -> tuple[Device, ...]:
    try:
        return () if node is None else codec.devices(node)
    except ClaimError:
        return ()


def _unassigned(
    pod: Pod, spoken: ClaimReading, cluster_index: ClusterIndex, repair: _NodeRepair
) -> Iterator[Finding]:
    """A claim that is still a promise, although all its containers run."""
    claim = spoken.claim
    if claim is None or registry().row(spoken.codec).repair is None or not _is_kept(pod, claim):
        return
    allocations: list[Allocation] = []
    proof: list[Holding] = []
    proven = True
    for allocation in claim.allocations:
        there = repair.whereabouts.of(pod, allocation.container)
        moved = repair.whereabouts.moved(allocation, there) if there else None
        proven = proven and (moved is not None or not is_running(pod, allocation.container))
        allocations.append(structs.replace(moved or allocation, phase=Phase.ASSIGNED))
        proof += there
    new = structs.replace(
        claim,
        allocations=tuple(allocations),
        assigned_at=_served_at(pod, cluster_index),
        unserved=(),
        failed=False,
    )
    after = repair.rewriter.edits(pod, spoken.codec, new)
    evidence = (
        f"it runs, but by {', '.join(spoken.codec.claim_keys(pod))} it waits for its devices",
        *map(of_holding, proof),
    )
    objection = None if proven else SkipReason.NO_NODE_EVIDENCE
    cause = Cause.RUNS_UNASSIGNED
    yield repair.finding(
        Rule.RECOVER, cause, pod, evidence=evidence, after=after, objection=objection
    )


def _is_kept(pod: Pod, claim: Claim) -> bool:
    """Whether something is still promised, and everything runs for which something is.

    Init containers have run by then: the others start after them.
    """
    inits = {each.name for each in pod.containers if each.kind is ContainerKind.INIT}
    return any(each.phase is Phase.ASSUMED for each in claim.allocations) and all(
        each.container in inits or is_running(pod, each.container) for each in claim.allocations
    )


def _unclaimed(
    pod: Pod, codec: SchemeCodec, cluster_index: ClusterIndex, repair: _NodeRepair
) -> Iterator[Finding]:
    """Containers that the kubelet has placed, and of which the annotations do not say where."""
    said = next((each for each in cluster_index.spoken(pod) if each.codec is codec), None)
    requests = _asked(pod, codec)
    claimed = {each.container for each in said.claim.allocations} if said and said.claim else set()
    missing = [request for request in requests if request.container not in claimed]
    if not missing or (said is None and _is_silent(pod, codec, repair.ledger)):
        return
    allocations: list[Allocation] = []
    proof: list[Holding] = []
    for request in requests:
        there = repair.whereabouts.of(pod, request.container)
        in_language = all(holding.scheme is codec.scheme for holding in there)
        if not in_language or sum(holding.slots for holding in there) != request.count:
            return
        shares = _shares(codec, request, there)
        allocations.append(Allocation(request.container, shares, Phase.ASSIGNED))
        proof += there
    new = Claim(
        scheme=codec.scheme,
        pod=pod.ref,
        node=pod.node,
        allocations=tuple(allocations),
        assigned_at=_served_at(pod, cluster_index),
    )
    after = repair.rewriter.edits(pod, codec, new)
    error = said.error if said else None
    names = ", ".join(request.container for request in missing)
    evidence = (
        str(error) if error else f"no annotation names the device of {names}",
        *map(of_holding, proof),
    )
    cause = Cause.MALFORMED if error else Cause.RUNS_UNCLAIMED
    yield repair.finding(Rule.RECOVER, cause, pod, evidence=evidence, after=after)


def _asked(pod: Pod, codec: SchemeCodec) -> Sequence[Request]:
    """What its running containers ask for; nothing, if that cannot be read or not be answered."""
    read_only = registry().read_only_resources
    old = any(not read_only.isdisjoint(each.limits) for each in pod.containers)
    if registry().row(codec).repair is None or old:
        return ()
    try:
        return [each for each in codec.requests(pod) if each.kind is not ContainerKind.INIT]
    except ClaimError:
        return ()


def _is_silent(pod: Pod, codec: SchemeCodec, ledger: Ledger) -> bool:
    """Whether its plugin would have written nothing, since there is one GPU only."""
    cards = tuple(entry.device for entry in ledger.devices if not entry.device.parent)
    return codec.sole_card(pod, cards) is not None


def _shares(codec: SchemeCodec, request: Request, there: Iterable[Holding]) -> tuple[Share, ...]:
    """As much as was asked for; memory that was left to the scheduler as it was enforced."""
    row = registry().row(codec)
    cores = request.cores_milli if row.shares_cores else None
    shares = []
    for holding in there:
        memory = request.memory_bytes
        enforced = holding.share.memory_bytes
        if memory is None and enforced is not None and row.repair and row.repair.sized_as_enforced:
            memory = enforced // holding.slots
        shares += [Share(holding.share.device, memory, cores)] * holding.slots
    return tuple(shares)


def _served_at(pod: Pod, cluster_index: ClusterIndex) -> float:
    """When the plugin must have served it: the kubelet asks it as it admits the pod."""
    times = (pod.started_at, pod.scheduled_at, pod.created_at)
    return next((at for at in times if at is not None), cluster_index.now)
