"""KAI Scheduler's settings: sharing, limits, the memory of GPUs, the label of queues; pure.

Its operator starts the webhook with ``--gpu-sharing-enabled`` and ``--hami-core-enabled``, and the
binder with its plugins as JSON (``pkg/operator/operands/admission/resources.go``,
``.../binder/resources.go``, v0.17). The plugin ``hamicore`` is off by default. A share is limited
only if three of them agree: the binder writes the limit, the webhook passes it to the container,
and the isolator loads HAMi-core.

The label of queues is ``runai/queue`` before v0.6, and ``kai.scheduler/queue`` by default since.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from vgpu.kube.installation_kinds import DAEMON_SETS, DEPLOYMENTS
from vgpu.model.units import count
from vgpu.schemes.nvidia.resources import GPU
from vgpucli.doctor.components import (
    KAI,
    KAI_ISOLATOR,
    LIMITS_FLAG,
    PLUGINS_FLAG,
    SHARING_FLAG,
    ComponentRole,
    InstalledComponent,
)
from vgpucli.doctor.facts import ClusterFacts, named
from vgpucli.doctor.model import DoctorCheck, DoctorFinding, DoctorReason, finding
from vgpucli.doctor.queued_pods import queue_labels

_SETTINGS: Final = DoctorCheck.SETTINGS

MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
"""The label of nodes with the memory of a GPU in MiB."""

_ISOLATING: Final = (ComponentRole.WEBHOOK, ComponentRole.LIBRARY)
"""The isolator's parts without which no container gets the library."""


def check_kai(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """The findings about KAI Scheduler, if it is installed."""
    own = [each for each in facts.components if each.row.system == KAI and each.workload.desired]
    if not own:
        return
    webhooks = _of_role(own, ComponentRole.WEBHOOK)
    yield from _sharing(webhooks)
    yield from _limits(facts, _of_role(own, ComponentRole.BINDER), webhooks)
    yield from _memory_labels(facts)
    yield from _queue_labels(facts, own)


def _of_role(own: list[InstalledComponent], role: ComponentRole) -> list[InstalledComponent]:
    return [each for each in own if each.row.role is role]


def _sharing(webhooks: list[InstalledComponent]) -> Iterator[DoctorFinding]:
    for each in webhooks:
        is_on = _is_on(each, SHARING_FLAG)
        reason = DoctorReason.KAI_SHARING if is_on else DoctorReason.KAI_SHARING_OFF
        evidence = f"its webhook {'has' if is_on else 'does not have'} --{SHARING_FLAG}"
        yield finding(_SETTINGS, reason, each.workload.title, evidence)


def _limits(
    facts: ClusterFacts, binders: list[InstalledComponent], webhooks: list[InstalledComponent]
) -> Iterator[DoctorFinding]:
    """Whether shares are limited: by binder, webhook and isolator together."""
    if not (binders and webhooks):
        return
    writing = [each for each in binders if _writes_limits(each)]
    passing = [each for each in webhooks if _is_on(each, LIMITS_FLAG)]
    if bool(writing) != bool(passing):
        texts = (
            f"{each.text}: memory limits are {'on' if each in (*writing, *passing) else 'off'}"
            for each in (*binders, *webhooks)
        )
        yield finding(_SETTINGS, DoctorReason.KAI_LIMITS_DIFFER, "", *texts)
        return
    isolating = [
        each
        for each in facts.components
        if each.row.system == KAI_ISOLATOR and each.row.role in _ISOLATING and each.workload.desired
    ]
    if isolating and not writing:
        texts = (each.text for each in isolating)
        off = f"{binders[0].text}: its plugin hamicore is off"
        yield finding(_SETTINGS, DoctorReason.KAI_LIMIT_MISSING, "", off, *texts)
    if isolating or not (facts.has_read(DAEMON_SETS) and facts.has_read(DEPLOYMENTS)):
        return
    if writing:
        texts = (f"{each.text}: its plugin hamicore is on" for each in writing)
        yield finding(_SETTINGS, DoctorReason.KAI_LIMIT_UNUSED, "", *texts)
        return
    yield finding(_SETTINGS, DoctorReason.KAI_NOT_LIMITED, "", f"{binders[0].text}")


def _memory_labels(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Nodes whose GPUs have no size for KAI Scheduler."""
    lacking = [
        each.node.name
        for each in facts.nodes
        if each.node.capacity.get(GPU) and not _is_size(each.labels.get(MEMORY_LABEL, ""))
    ]
    if lacking:
        evidence = f"{count(len(lacking), 'node')} without {MEMORY_LABEL}: {named(lacking)}"
        yield finding(_SETTINGS, DoctorReason.KAI_MEMORY_LABEL, "", evidence)


def _queue_labels(facts: ClusterFacts, own: list[InstalledComponent]) -> Iterator[DoctorFinding]:
    """The label by which pods name their queue, and pods that name it by another one."""
    by_label = queue_labels(own)
    if len(by_label) > 1:
        texts = (f"{each.text}: {label}" for label, some in by_label.items() for each in some)
        yield finding(_SETTINGS, DoctorReason.KAI_QUEUE_LABELS, "", *texts)
        return
    for label, readers in by_label.items():
        texts = (each.text for each in readers)
        yield finding(_SETTINGS, DoctorReason.KAI_QUEUE_LABEL, label, *texts)
        for unread, pods in facts.queued_by.items():
            if pods:
                evidence = f"{count(len(pods), 'pod')} without {label}: {named(pods)}"
                yield finding(_SETTINGS, DoctorReason.KAI_QUEUE_LABEL_UNREAD, unread, evidence)


def _is_on(component: InstalledComponent, flag: str) -> bool:
    """Whether a flag of Go is true: alone, or with a value that means so."""
    given = component.flags.get(flag)
    return given is not None and given.lower() in ("", "1", "t", "true")


def _writes_limits(binder: InstalledComponent) -> bool:
    """Whether the binder's plugin that writes limits is on."""
    try:
        plugins: Any = msgspec.json.decode(binder.flags.get(PLUGINS_FLAG, "") or "{}")
    except msgspec.DecodeError:
        return False
    plugin = plugins.get("hamicore") if isinstance(plugins, dict) else None
    return isinstance(plugin, dict) and plugin.get("enabled") is True


def _is_size(text: str) -> bool:
    """Whether the label is one that KAI Scheduler and its plugin can read."""
    return text.isascii() and text.isdecimal() and int(text) > 0
