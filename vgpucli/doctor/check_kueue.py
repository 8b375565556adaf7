"""Kueue in front of the sharing systems: whether it runs, and how it counts HAMi's resources. Pure.

Kueue's webhooks for pods have failurePolicy Fail and match pods of all namespaces but its own and
kube-system (v0.17.0, ``config/components/webhook``): without Kueue no pod is created.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from vgpu.kube.installation import AdmissionWebhook, Workload
from vgpu.kube.installation_kinds import DEPLOYMENTS
from vgpu.model.units import count
from vgpu.quota.queue_findings import missing_transformations
from vgpucli.doctor.components import HAMIS, ComponentRole
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import ADD_TO_DUMP, DoctorCheck, DoctorFinding, DoctorReason, finding

_SETTINGS: Final = DoctorCheck.SETTINGS

_SERVICE: Final = "kueue-webhook-service"
"""The end of the name of the Service that Kueue's webhooks call."""

_OF_SERVICE, _OF_MANAGER = "webhook-service", "controller-manager"
"""The ends of the names of this Service and of the Deployment behind it, in Kueue's manifests and
its chart. Images have other names in the builds of others."""


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
    blocking: dict[tuple[str, str], list[AdmissionWebhook]] = {}
    for each in facts.webhooks:
        if each.failure_policy == "Fail" and each.service.endswith(_SERVICE):
            blocking.setdefault((each.namespace, each.service), []).append(each)
    for (namespace, service), webhooks in blocking.items():
        managers = _managers(facts, namespace, service)
        if any(each.ready for each in managers):
            continue
        configurations = ", ".join(sorted({each.configuration for each in webhooks}))
        about = f"MutatingWebhookConfiguration {configurations}"
        if not managers and not _knows_absence(facts):
            if facts.is_dump:
                what = f"Deployments of namespace {namespace}, which {about} needs"
                unread = finding(
                    _SETTINGS, DoctorReason.NOT_READ, what, "there are none in the dump"
                )
                yield msgspec.structs.replace(unread, advice=ADD_TO_DUMP)
            continue
        texts = [
            f"{each.title}: {each.ready} of {count(each.desired, 'pod')} ready" for each in managers
        ]
        none = f"no Deployment of Kueue in namespace {namespace}"
        created = sorted({resource for each in webhooks for resource in each.created})
        refused = [f"refused: new {', '.join(created)}"] if created else []
        yield finding(_SETTINGS, DoctorReason.KUEUE_AWAY, about, *(texts or (none,)), *refused)


def _managers(facts: ClusterFacts, namespace: str, service: str) -> list[Workload]:
    """What may be behind the Service: what is known to be Kueue, else all of its namespace."""
    own = [each for each in facts.workloads if each.namespace == namespace]
    name = f"{service.removesuffix(_OF_SERVICE)}{_OF_MANAGER}"
    images = [
        each.workload for each in facts.components if each.row.role is ComponentRole.QUEUE_MANAGER
    ]
    return [each for each in own if each.name == name or each in images] or own


def _knows_absence(facts: ClusterFacts) -> bool:
    """Whether a Deployment that was not read does not exist.

    A dump whose Deployments are of one namespace is mostly a list of that namespace.
    """
    if facts.malformed:
        return False
    spaces = {each.namespace for each in facts.workloads if each.kind == DEPLOYMENTS.name}
    return not facts.is_dump or len(spaces) > 1
