"""Whether an admission policy limits the accounts of vgpu, and whether their tokens meet it; pure.

Of a policy its expressions are searched for the names of users and for the key by which a token
names its node, so that the chart's policy is recognised under every name of its release.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from vgpu.kube.installation import AdmissionPolicy
from vgpu.kube.self_review import NODE_KEY, NODE_KEY_SINCE
from vgpu.model.units import count
from vgpucli.doctor.access_review import service_account_user
from vgpucli.doctor.check_nodes import version
from vgpucli.doctor.components import NODE_TOKEN_FLAG, ComponentRole, InstalledComponent
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

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
