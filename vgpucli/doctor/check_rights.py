"""The rights that vgpu's components need, those that they lack, and the policies that limit them.

A test compares the table of rights with the manifests. Of an admission policy its expressions are
searched for the names of users and for the key by which a token names its node, so that the chart's
policy is recognised under every name of its release. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from vgpu.kube.installation import AdmissionPolicy
from vgpu.kube.node_key import NODE_KEY, NODE_KEY_SINCE
from vgpu.model.units import count
from vgpucli.doctor.access_review import Right, service_account_user
from vgpucli.doctor.check_nodes import version
from vgpucli.doctor.components import NODE_TOKEN_FLAG, ComponentRole, InstalledComponent
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

OWN: Final = "(own)"
"""Stands for the namespace in which a component keeps what is its own."""

SYSTEM: Final = "kube-system"

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Rights(msgspec.Struct, frozen=True):
    """Verbs on a resource.

    ``need`` is what they are for; "" if the component cannot do without them. ``flag`` is the flag
    without which they are not needed.
    """

    resource: str
    verbs: tuple[str, ...]
    group: str = ""
    namespace: str = ""
    name: str = ""
    need: str = ""
    flag: str = ""


_READ: Final = ("list", "watch")
_GET: Final = ("get",)
_PATCH: Final = ("patch",)
_EVENTS: Final = Rights("events", ("create", "get", "patch"), need="events about its actions")
_LEASES: Final = "coordination.k8s.io"
_KUBESHARE: Final = "kubeshare.nthu"

RIGHTS: Final[dict[ComponentRole, tuple[Rights, ...]]] = {
    ComponentRole.DEVICE_PLUGIN: (
        Rights("pods", _READ),
        Rights("nodes", _READ),
        Rights("pods/status", _PATCH),
        Rights("nodes/status", _PATCH),
        _EVENTS,
    ),
    ComponentRole.SCHEDULER: (
        Rights("pods", ("get", *_READ)),
        Rights("pods/status", _PATCH),
        Rights("pods/binding", ("create",)),
        Rights("nodes", _READ),
        _EVENTS,
        Rights("namespaces", _READ, need="quotas; else --no-quotas"),
        Rights("resourcequotas", _READ, need="quotas; else --no-quotas"),
        Rights("poddisruptionbudgets", ("list",), "policy", need="preemption"),
        Rights("leases", ("get", "create", "update"), _LEASES, OWN),
        Rights("configmaps", _READ, namespace=SYSTEM, need="gpushare and gpu-admission"),
    ),
    ComponentRole.RECONCILER: (
        Rights("pods", ("get", *_READ)),
        Rights("nodes", ("get", *_READ)),
        Rights("namespaces", _READ, need="quotas and policies of namespaces"),
        Rights("resourcequotas", _READ, need="rules over_quota, quota_drift and quota_mark"),
        Rights("sharepods", ("get", *_READ), _KUBESHARE, need="KubeShare"),
        Rights("pods/eviction", ("create",), need="mode apply"),
        Rights("pods/status", _PATCH, need="rules that repair annotations"),
        Rights("nodes/status", _PATCH, need="rules that repair locks and handshakes"),
        _EVENTS,
        Rights("configmaps", ("list",), namespace=SYSTEM, need="gpushare"),
        Rights("configmaps", ("get", "update"), namespace=OWN, name="vgpu-reconcile-state"),
        Rights("configmaps", ("create",), namespace=OWN),
        Rights("leases", ("get", "update"), _LEASES, OWN, "vgpu-reconciler"),
        Rights("leases", ("create",), _LEASES, OWN),
    ),
    ComponentRole.EXPORTER: (
        Rights("pods", _READ, flag="collector.api"),
        Rights("nodes", _GET, flag="collector.api"),
    ),
    ComponentRole.NODE_RECONCILER: (
        Rights("pods", ("get", *_READ)),
        Rights("nodes", _GET),
        Rights("pods/status", _PATCH, need="rules card_drift and recover"),
        _EVENTS,
    ),
    ComponentRole.CONTROLLER: (
        Rights("sharepods", ("get", *_READ, "patch"), _KUBESHARE),
        Rights("pods", ("get", *_READ, "create", "delete")),
        Rights("pods/eviction", ("create",)),
        Rights("nodes", _READ),
        _EVENTS,
        Rights("leases", ("get", "update"), _LEASES, OWN, "vgpu-kubeshare-controller"),
        Rights("leases", ("create",), _LEASES, OWN),
    ),
    ComponentRole.NODE_COMPONENT: (
        Rights("sharepods", _READ, _KUBESHARE),
        Rights("nodes", _GET),
        Rights("nodes/status", _PATCH),
        Rights("pods", _READ, namespace=SYSTEM),
        Rights("pods/status", _PATCH, namespace=SYSTEM),
    ),
}
"""By the role of the component; feedback and token daemon need no right."""


def needed(component: InstalledComponent) -> Iterator[tuple[Right, str]]:
    """The rights of a component of vgpu, each with what it is for."""
    if not component.is_ours:
        return
    for rights in RIGHTS.get(component.row.role, ()):
        if rights.flag and rights.flag not in component.flags:
            continue
        namespace = own_namespace(component) if rights.namespace == OWN else rights.namespace
        for verb in rights.verbs:
            right = Right(rights.group, rights.resource, verb, namespace, rights.name)
            yield right, rights.need


def own_namespace(component: InstalledComponent) -> str:
    """The namespace of its Leases and ConfigMaps, by its flags."""
    flags, role = component.flags, component.row.role
    typed = flags.get("lease-namespace", flags.get("state-namespace", ""))
    if _NAMESPACE.fullmatch(typed):
        return typed
    is_default = not typed and role in (ComponentRole.SCHEDULER, ComponentRole.CONTROLLER)
    return SYSTEM if is_default else component.workload.namespace


# ---------------------------------------------------------------- missing rights


def check_rights(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The rights that components lack, and those that no admission policy limits."""
    for denied in facts.denied:
        reason = DoctorReason.MISSING_OPTIONAL_RIGHT if denied.need else DoctorReason.MISSING_RIGHT
        need = f", for: {denied.need}" if denied.need else ""
        evidence = f"{denied.account} may not {denied.right.text}{need}"
        yield finding(DoctorCheck.RIGHTS, reason, denied.component, evidence, denied.right.rule)
    yield from check_accounts(facts)


# ---------------------------------------------------------------- admission policies


OF_NODES: Final = frozenset(
    {
        ComponentRole.DEVICE_PLUGIN,
        ComponentRole.NODE_RECONCILER,
        ComponentRole.NODE_COMPONENT,
    }
)
"""The components of vgpu that write objects of their node alone."""

WRITERS: Final = OF_NODES | {
    ComponentRole.SCHEDULER,
    ComponentRole.RECONCILER,
    ComponentRole.CONTROLLER,
}
"""The components of vgpu that write annotations, labels or a status."""

_WRITTEN: Final = "UPDATE"


def writers(components: tuple[InstalledComponent, ...]) -> list[InstalledComponent]:
    """The components of vgpu that write."""
    return [each for each in components if each.is_ours and each.row.role in WRITERS]


def has_policies(server_version: str) -> bool:
    """Whether a server of this version has ValidatingAdmissionPolicies of v1."""
    return version(server_version)[:2] >= NODE_KEY_SINCE


def check_accounts(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The policy for each account of vgpu, and the node in the tokens of DaemonSets."""
    for component in writers(facts.components):
        policies = _of_account(facts, component)
        if policies is not None and not any(_is_in_force(facts, each) for each in policies):
            yield _not_limited(component, policies)
        if component.row.role in OF_NODES:
            yield from _node_token(facts, component, policies or [])


def _node_token(
    facts: ClusterFacts, component: InstalledComponent, policies: list[AdmissionPolicy]
) -> Iterator[DoctorFinding]:
    about, workload = component.workload.title, component.workload
    requires = NODE_TOKEN_FLAG in component.flags
    server = version(facts.server_version)[:2]
    refusing = [each for each in policies if _needs_key(each, component)]
    needed = [f"the policy {each.name} requires {NODE_KEY}" for each in refusing]
    if requires and () < server < NODE_KEY_SINCE:
        reason = DoctorReason.NODE_KEY_ABSENT
        what = f"--{NODE_TOKEN_FLAG}"
        since = ".".join(map(str, NODE_KEY_SINCE))
        needed = [f"API server: {facts.server_version}; tokens have {NODE_KEY} from {since} on"]
    elif requires and workload.ready < workload.desired:
        reason = DoctorReason.NODE_TOKEN_REQUIRED
        ready = f"{workload.ready} of {count(workload.desired, 'pod')} ready"
        what = f"{ready}, with --{NODE_TOKEN_FLAG}"
    elif refusing and not requires:
        reason = DoctorReason.NODE_TOKEN_UNCHECKED
        what = f"no --{NODE_TOKEN_FLAG}"
    else:
        return
    yield finding(DoctorCheck.RIGHTS, reason, about, f"{component.row.title}: {what}", *needed)


def _not_limited(component: InstalledComponent, policies: list[AdmissionPolicy]) -> DoctorFinding:
    user, about = _user(component), component.workload.title
    unbound = [f"the policy {each.name} has no binding with Deny" for each in policies]
    evidence = unbound or ["no policy names it"]
    return finding(
        DoctorCheck.RIGHTS,
        DoctorReason.ACCOUNT_NOT_LIMITED,
        about,
        f"{component.row.title}, {user}: {', '.join(evidence)}",
    )


def _of_account(facts: ClusterFacts, component: InstalledComponent) -> list[AdmissionPolicy] | None:
    """The policies for what the account writes; None if they are not known."""
    if facts.policies is None or facts.policy_bindings is None:
        return None
    return [
        each
        for each in facts.policies
        if _WRITTEN in each.operations and _is_named(component, each.conditions)
    ]


def _is_in_force(facts: ClusterFacts, policy: AdmissionPolicy) -> bool:
    return any(each.policy == policy.name and each.denies for each in facts.policy_bindings or ())


def _needs_key(policy: AdmissionPolicy, component: InstalledComponent) -> bool:
    """Whether the policy allows the account only objects of the node that its token names."""
    return any(NODE_KEY in text for text in policy.rules) and _is_named(component, policy.rules)


def _is_named(component: InstalledComponent, expressions: Iterable[str]) -> bool:
    """Whether one of the expressions has the account's user as a text."""
    user = f"'{_user(component)}'"
    return any(user in text for text in expressions)


def _user(component: InstalledComponent) -> str:
    workload = component.workload
    return service_account_user(workload.namespace, workload.service_account)
