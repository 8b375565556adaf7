"""Kueue in front of the sharing systems: whether it runs, and how it counts HAMi's resources. Pure.

Kueue's webhooks for pods have failurePolicy Fail and match pods of all namespaces but its own and
kube-system (v0.17.0, ``config/components/webhook``): without Kueue no pod is created.
"""

from collections.abc import Iterator
from typing import Final

from vgpu.kube.installation_kinds import DEPLOYMENTS
from vgpu.model.units import count
from vgpu.quota.queue_findings import missing_transformations
from vgpucli.doctor.components import HAMIS, ComponentRole
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding

_SETTINGS: Final = DoctorCheck.SETTINGS

_SERVICE: Final = "kueue-webhook-service"
"""The end of the name of the Service that Kueue's webhooks call."""


def check_kueue(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Kueue's webhooks without Kueue, and HAMi behind it without transformations."""
    yield from _away(facts)
    missing = [] if facts.kueue is None or facts.kueue.problem else [*_missing(facts)]
    if missing:
        yield finding(_SETTINGS, DoctorReason.KUEUE_COUNTS_ONCE, "Kueue", *missing)


def _missing(facts: ClusterFacts) -> Iterator[str]:
    """The lines that are missing, if nodes have GPUs of HAMi."""
    nodes = [node for node, systems in facts.systems.items() if HAMIS in systems]
    if facts.kueue is not None and nodes and (lines := [*missing_transformations(facts.kueue)]):
        yield f"nodes with GPUs of HAMi: {named(nodes)}"
        yield from lines


def _away(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    if not facts.has_read(DEPLOYMENTS):
        return
    blocking: dict[str, set[str]] = {}
    for each in facts.webhooks:
        if each.failure_policy == "Fail" and each.service.endswith(_SERVICE):
            blocking.setdefault(each.namespace, set()).add(each.configuration)
    for namespace, configurations in blocking.items():
        managers = [
            each
            for each in facts.components
            if each.row.role is ComponentRole.QUEUE_MANAGER and each.workload.namespace == namespace
        ]
        if any(each.workload.ready for each in managers):
            continue
        texts = [
            f"{each.text}: {each.workload.ready} of {count(each.workload.desired, 'pod')} ready"
            for each in managers
        ]
        about = f"MutatingWebhookConfiguration {', '.join(sorted(configurations))}"
        none = f"no Deployment of Kueue in namespace {namespace}"
        yield finding(_SETTINGS, DoctorReason.KUEUE_AWAY, about, *(texts or (none,)))
