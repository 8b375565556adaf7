"""What needs action: findings, conflicts, doctor's errors and quotas, one line an object. Pure.

A problem is of the command that reports it. Several of one object are one line: the worst of them,
and the codes of the others.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from fleet.snapshot import FleetSnapshot
from reconciler.model import ObjectKind
from reconciler.reasons import Effect, Rule
from reconciler.report.document import EntryDocument
from reconciler.rules.conflicts import CAUSES
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.ledger import ConflictKind
from vgpu.ledger.limit_verdict import LimitReason, LimitState
from vgpu.model.documentation import page
from vgpu.model.reasons import Explained
from vgpu.model.units import rounded_size
from vgpu.quota.resources import amount_text
from vgpucli.doctor.model import DoctorReason, Severity
from vgpucli.doctor.report import FindingDocument
from vgpucli.inspect.document import ConflictDocument, NodeDocument, PodName
from vgpucli.inspect.groups import GroupDocument, LimitDocument

SEVERITIES: Final[Mapping[str, Severity]] = {
    Rule.REFUSED: Severity.ERROR,
    Rule.TERMINATED: Severity.WARNING,
    Rule.OVER_PROMISED: Severity.ERROR,
    Rule.PRESTART_FAILED: Severity.ERROR,
    Rule.NO_GPU_MATCHED: Severity.ERROR,
    Rule.ASSUMED_EXPIRED: Severity.ERROR,
    Rule.ASSUMED_UNBOUND: Severity.WARNING,
    Rule.STALE_LOCK: Severity.ERROR,
    Rule.STALE_HANDSHAKE: Severity.ERROR,
    Rule.LEFTOVER_CLAIM: Severity.WARNING,
    Rule.GPU_DRIFT: Severity.WARNING,
    Rule.RECOVER: Severity.WARNING,
    Rule.DOUBLE_BOOKED: Severity.ERROR,
    Rule.RUNNING_WITHOUT_DEVICE: Severity.ERROR,
    Rule.LOST_DEVICE: Severity.ERROR,
    Rule.UNOWNED_PROCESS: Severity.WARNING,
    Rule.OVER_LIMIT: Severity.ERROR,
    Rule.ORPHAN_SHIM_DIR: Severity.INFO,
    Rule.KUBESHARE: Severity.WARNING,
    Rule.KAI: Severity.WARNING,
    Rule.STUCK_TERMINATING: Severity.WARNING,
    Rule.HELD_FOR_NOTHING: Severity.WARNING,
    Rule.IDLE_HOLDER: Severity.INFO,
    Rule.OVER_QUOTA: Severity.WARNING,
    Rule.QUOTA_MARK: Severity.INFO,
    Rule.QUOTA_DRIFT: Severity.INFO,
    Rule.RESOURCE_CLAIM: Severity.WARNING,
    Rule.MALFORMED_OBJECT: Severity.WARNING,
}
"""How bad a finding of each rule is: an error lets pods fail or get wrong GPUs."""

REMARKS: Final[frozenset[str]] = frozenset({ConflictKind.FILE_DIFFERS, ConflictKind.LIMIT_DIFFERS})
"""Conflicts of files that tenants can write: worth knowing, and no evidence."""

_EFFECTS: Final = {effect.value: effect.explanation for effect in Effect}

_RULES: Final = {kind.value: rule.value for kind, (rule, _) in CAUSES.items()}
"""The rule that reports a conflict."""

_ORDER: Final = {severity.value: number for number, severity in enumerate(Severity)}

NEEDS_ACTION: Final = frozenset({Severity.ERROR.value, Severity.WARNING.value})
"""The severities that the first sentence counts."""


_PODS: Final = (ObjectKind.POD, ObjectKind.SHARE_POD)


class FleetObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object that a problem is about; devices of two nodes may have the same name."""

    kind: str
    namespace: str
    name: str
    node: str = ""


class FleetProblem(msgspec.Struct, frozen=True, rename="camel"):
    """One object with what is wrong with it.

    Attributes:
        severity: error, warning or info.
        kind: Pod, Node, Device, … in Kubernetes' spelling; "" is the cluster.
        namespace, name: of the object.
        node: where it is, "" if nowhere.
        source: the command that reports it: ``plan``, ``inspect``, ``doctor``.
        code, explanation: the reason.
        detail: what exactly, for people; "" if the reason is all.
        effect: what ``vgpu reconcile`` would do about it, or why it would not; "" if nothing.
        since: null if unknown.
        command: what to type for more.
        runbook: the page about it, "" if there is none.
        also: the codes of its other problems.
        objects: the other objects that it is about, such as the pods that share a GPU.
    """

    severity: str
    kind: str
    namespace: str
    name: str
    node: str
    source: str
    code: str
    explanation: str
    detail: str = ""
    effect: str = ""
    since: datetime | None = None
    command: str = ""
    runbook: str = ""
    also: tuple[str, ...] = ()
    objects: tuple[FleetObject, ...] = ()

    @property
    def of_all(self) -> tuple[FleetObject, ...]:
        """All objects that it is about."""
        return (FleetObject(self.kind, self.namespace, self.name, self.node), *self.objects)

    def is_about_pod(self, namespace: str, name: str) -> bool:
        """Whether it is about the pod or the SharePod of this name."""
        return any(
            each.kind in _PODS and (each.namespace, each.name) == (namespace, name)
            for each in self.of_all
        )

    def is_about_gpu(self, node: str, names: Collection[str]) -> bool:
        """Whether it is about the GPU of a node, which has these names."""
        return any(
            each.kind == ObjectKind.DEVICE and each.node == node and each.name in names
            for each in self.of_all
        )

    def is_on_node(self, node: str) -> bool:
        """Whether it is about the node, or about something on it."""
        return any(
            each.node == node or (each.kind == ObjectKind.NODE and each.name == node)
            for each in self.of_all
        )

    def is_in_namespace(self, namespace: str) -> bool:
        """Whether it is about an object of the namespace."""
        return any(each.namespace == namespace for each in self.of_all)

    @property
    def text(self) -> str:
        """The object for people."""
        has_namespace = self.namespace and self.kind != ObjectKind.NAMESPACE
        return f"{self.namespace}/{self.name}" if has_namespace else self.name


def problems(snapshot: FleetSnapshot) -> tuple[FleetProblem, ...]:
    """One problem an object, the worst first, then the oldest."""
    by_object: dict[tuple[str, str, str, str], list[FleetProblem]] = {}
    for problem in _all(snapshot):
        node = problem.node if problem.kind == ObjectKind.DEVICE else ""
        key = problem.kind, problem.namespace, problem.name or problem.code, node
        by_object.setdefault(key, []).append(problem)
    joined = sorted(map(_joined, by_object.values()), key=_rank)
    return tuple(
        msgspec.structs.replace(each, command=snapshot.command(shlex.split(each.command)[1:]))
        for each in joined
    )


def _joined(of_object: list[FleetProblem]) -> FleetProblem:
    worst, *others = sorted(of_object, key=_rank)
    codes = dict.fromkeys(each.code for each in others if each.code != worst.code)
    objects = dict.fromkeys(other for each in of_object for other in each.objects)
    return msgspec.structs.replace(worst, also=tuple(codes), objects=tuple(objects))


def _rank(problem: FleetProblem) -> tuple[int, float, str, str]:
    since = float("inf") if problem.since is None else problem.since.timestamp()
    return _ORDER[problem.severity], since, problem.text, problem.code


def _all(snapshot: FleetSnapshot) -> Iterator[FleetProblem]:
    plan = snapshot.plan
    entries = (*plan.actions, *plan.skipped, *plan.findings)
    reported: dict[_Key, list[FleetObject]] = {_key(entry): [] for entry in entries}
    holders = _holders(snapshot)
    for conflict in snapshot.inspect.conflicts:
        objects = _objects(conflict, holders)
        keys = _keys(conflict) & reported.keys()
        for key in keys:
            reported[key] += objects
        if not keys:
            yield _of_conflict(conflict, objects)
    for entry in entries:
        yield _of_entry(entry, tuple(reported[_key(entry)]))
    for finding in snapshot.diagnosis.findings:
        if finding.severity in NEEDS_ACTION and not is_only_absent(snapshot, finding):
            yield _of_finding(finding)
    for node in snapshot.nodes:
        yield from _of_node(node)
        yield from _of_limits(node)
    over = {entry.namespace for entry in entries if entry.rule == Rule.OVER_QUOTA}
    for group in snapshot.groups["namespace"].groups:
        if group.name not in over:
            yield from _of_quota(group)


# ---------------------------------------------------------------- findings

_Key = tuple[str, str, str]
"""A rule, a node, and the UID or name of an object."""


def _key(entry: EntryDocument) -> _Key:
    return entry.rule, entry.node, entry.uid or entry.name


def _of_entry(entry: EntryDocument, objects: tuple[FleetObject, ...]) -> FleetProblem:
    effect = ""
    if entry.skip is not None:
        effect = f"{entry.skip}: {entry.skip_detail or entry.skip_explanation}"
    elif entry.effect is not None:
        effect = f"{entry.effect}: {_EFFECTS[entry.effect]}"
    return FleetProblem(
        SEVERITIES[entry.rule].value,
        entry.kind,
        entry.namespace,
        entry.name,
        entry.node,
        "plan",
        entry.rule,
        entry.explanation,
        "; ".join((entry.part and f"[{entry.part}]", *entry.evidence)).strip("; "),
        effect,
        entry.since,
        command_for(entry.kind, entry.namespace, entry.name, entry.node),
        page(f"runbooks/{entry.rule}"),
        entry.also,
        _others(entry.kind, entry.namespace, entry.name, objects),
    )


def _others(
    kind: str, namespace: str, name: str, objects: Iterable[FleetObject]
) -> tuple[FleetObject, ...]:
    """The objects without the one of this name, each once."""
    own = kind, namespace, name
    return tuple(
        each for each in dict.fromkeys(objects) if (each.kind, each.namespace, each.name) != own
    )


def command_for(kind: str, namespace: str, name: str, node: str = "") -> str:
    """What to type to see the object with its reasons."""
    match kind:
        case ObjectKind.POD | ObjectKind.SHARE_POD:
            words = ["explain", "pod", f"{namespace}/{name}"]
        case ObjectKind.NODE:
            words = ["explain", "node", name]
        case ObjectKind.DEVICE:
            words = ["explain", "gpu", f"{node}/{name}"]
        case ObjectKind.NAMESPACE | ObjectKind.RESOURCE_QUOTA:
            words = ["inspect", "--by", "namespace", "-n", namespace or name]
        case _:
            words = ["reconcile", "plan"]
    return shlex.join(["vgpu", *words])


# ---------------------------------------------------------------- conflicts


def _keys(conflict: ConflictDocument) -> set[_Key]:
    """What a rule's report of it may be: of its device, or of a pod."""
    if conflict.type not in _RULES:
        return set()
    about = {conflict.device, *(pod.uid for pod in _pods(conflict))}
    return {(_RULES[conflict.type], conflict.node, each) for each in about}


def _pods(conflict: ConflictDocument) -> Iterator[PodName]:
    if conflict.pod is not None:
        yield conflict.pod
    yield from (statement.pod for statement in conflict.statements)


_Holders = Mapping[tuple[str, str], list[PodName]]


def _holders(snapshot: FleetSnapshot) -> _Holders:
    """The pods that hold each device, by its node and each of its names."""
    found: dict[tuple[str, str], list[PodName]] = {}
    for node in snapshot.inspect.nodes:
        for device in node.devices:
            pods = [held.pod for held in device.holdings]
            found |= {(node.name, name): pods for name in (device.uuid, device.name) if name}
    return found


def _objects(conflict: ConflictDocument, holders: _Holders) -> tuple[FleetObject, ...]:
    """Its device and its pods; of a device as a whole all pods that hold it."""
    pods = list(_pods(conflict))
    if conflict.pod is None:
        pods += holders.get((conflict.node, conflict.device), [])
    of_pods = (
        FleetObject(ObjectKind.POD.value, pod.namespace, pod.name, conflict.node) for pod in pods
    )
    if not conflict.device:
        return tuple(of_pods)
    device = FleetObject(ObjectKind.DEVICE.value, "", conflict.device, conflict.node)
    return (device, *of_pods)


def _of_conflict(conflict: ConflictDocument, objects: tuple[FleetObject, ...]) -> FleetProblem:
    severity = Severity.INFO if conflict.type in REMARKS else Severity.WARNING
    if conflict.pod is not None:
        about = ObjectKind.POD, conflict.pod.namespace, conflict.pod.name
    elif conflict.device:
        about = ObjectKind.DEVICE, "", conflict.device
    else:
        about = ObjectKind.NODE, "", conflict.node
    return FleetProblem(
        severity.value,
        about[0].value,
        *about[1:],
        conflict.node,
        "inspect",
        conflict.type,
        conflict.explanation,
        conflict.detail,
        command=command_for(about[0].value, about[1], about[2], conflict.node),
        runbook=page("troubleshooting"),
        objects=_others(*about, objects),
    )


# ---------------------------------------------------------------- nodes and GPUs


def _of_node(node: NodeDocument) -> Iterator[FleetProblem]:
    """A node that is not ready, and each of its GPUs that is unhealthy."""
    if not node.known:
        return
    if not node.ready:
        yield _ill(ClosedReason.NOT_READY, ObjectKind.NODE, node.name, node.name)
    for device in node.devices:
        if not device.healthy:
            name = device.uuid or device.name
            yield _ill(ConflictKind.DEVICE_UNHEALTHY, ObjectKind.DEVICE, name, node.name)


def _ill(reason: Explained, kind: ObjectKind, name: str, node: str) -> FleetProblem:
    return FleetProblem(
        Severity.ERROR.value,
        kind.value,
        "",
        name,
        node,
        "inspect",
        reason.value,
        reason.explanation,
        command=command_for(kind, "", name, node),
        runbook=page("explain"),
    )


# ---------------------------------------------------------------- limits

WRONG_LIMITS: Final[Mapping[str, Severity]] = {
    LimitState.EXCEEDED.value: Severity.ERROR,
    LimitState.MISSING.value: Severity.ERROR,
    LimitState.DIFFERENT.value: Severity.WARNING,
}
"""How bad a state of a container's limit is; the other states are none."""

_LIMIT_TEXTS: Final = {reason.value: reason.explanation for reason in LimitReason}


def _of_limits(node: NodeDocument) -> Iterator[FleetProblem]:
    """The containers whose exporter reports that nothing limits them, or something else."""
    holdings = (*node.unplaced, *(held for device in node.devices for held in device.holdings))
    for held in holdings:
        state, code = held.limit_state, held.limit_reason
        if state is msgspec.UNSET or code is msgspec.UNSET or state not in WRONG_LIMITS:
            continue
        about = ObjectKind.POD.value, held.pod.namespace, held.pod.name
        yield FleetProblem(
            WRONG_LIMITS[state].value,
            *about,
            node.name,
            "inspect",
            code,
            _LIMIT_TEXTS[code],
            f"container {held.container}" if held.container else "",
            command=command_for(*about, node.name),
            runbook=page("limits"),
        )


# ---------------------------------------------------------------- doctor, quotas


def is_only_absent(snapshot: FleetSnapshot, finding: FindingDocument) -> bool:
    """Whether a dump does not have something, which is no problem of the cluster."""
    return snapshot.is_dump and finding.reason == DoctorReason.NOT_READ


_ABOUT: Final = re.compile(
    r"(ClusterRole|ConfigMap|CustomResourceDefinition|DaemonSet|Deployment|Lease|Namespace|Node|Pod"
    r"|ReplicaSet|ServiceAccount|StatefulSet|(?:Mutating|Validating)WebhookConfiguration)"
    r" (?:([a-z0-9.-]+)/)?([^\s/]+)"
)
"""An object in ``about`` of doctor's findings, such as ``DaemonSet kube-system/plugin``."""


def _object_of(about: str) -> tuple[str, str, str]:
    """The kind, namespace and name of an object that a text names; any other text is the name."""
    match = _ABOUT.fullmatch(about)
    return ("", "", about) if match is None else (match[1], match[2] or "", match[3])


def _of_finding(finding: FindingDocument) -> FleetProblem:
    kind, namespace, own = _object_of(finding.about)
    return FleetProblem(
        finding.severity,
        kind,
        namespace,
        own,
        "",
        "doctor",
        finding.reason,
        finding.explanation,
        "; ".join(finding.evidence),
        finding.advice,
        command="vgpu doctor",
        runbook=page("doctor"),
    )


def _of_quota(group: GroupDocument) -> Iterator[FleetProblem]:
    exceeded: Iterable[LimitDocument] = (each for each in group.quota if each.used > each.limit)
    for limit in exceeded:
        yield FleetProblem(
            Severity.WARNING.value,
            ObjectKind.NAMESPACE.value,
            group.name,
            group.name,
            "",
            "inspect",
            Rule.OVER_QUOTA.value,
            Rule.OVER_QUOTA.explanation,
            f"{limit.resource}: {_amount(limit, limit.used)} of {_amount(limit, limit.limit)}"
            f" ({limit.declared_in})",
            command=command_for(ObjectKind.NAMESPACE.value, "", group.name),
            runbook=page("runbooks/over_quota"),
        )


def _amount(limit: LimitDocument, amount: int) -> str:
    return amount_text(limit.resource, amount, rounded_size)
