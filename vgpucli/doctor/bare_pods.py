"""Pods that no controller has created, for `vgpu doctor`: static pods and bare pods; pure.

kubeadm runs kube-scheduler as a static pod, and KubeShare 1 its components as bare ones. As of
workloads, nothing but their programs is decoded.
"""

from typing import Final

from vgpu.kube import wire
from vgpu.kube.api_kind import Decoders
from vgpu.kube.installation import PlainMeta, TemplateSpec, Workload, workload_of
from vgpu.kube.kinds import PODS

UNMANAGED: Final = "!pod-template-hash,!controller-revision-hash,component!=kube-proxy"
"""The label selector of pods that no Deployment, DaemonSet or StatefulSet has created.

kube-proxy is a static pod of each node in some clouds.
"""

_NODE: Final = "Node"
"""The kind of the owner of a static pod's mirror."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class BarePodMeta(PlainMeta, frozen=True):
    """``metadata`` with the owners."""

    owner_references: list[wire.OwnerFields] | None = None


class BarePodStatus(wire.Wire, frozen=True):
    """``status`` of a pod: its phase, and whether it is ready."""

    phase: str = ""
    conditions: list[wire.Condition] | None = None


class BarePodFields(wire.ObjectFields, frozen=True):
    """A pod."""

    metadata: BarePodMeta
    spec: TemplateSpec = TemplateSpec()
    status: BarePodStatus = BarePodStatus()


def project_bare_pod(pod: BarePodFields, _: str) -> Workload | None:
    """The pod as a workload of its own; None if a controller has created it, or if it has ended."""
    owners = pod.metadata.owner_references or ()
    if pod.status.phase in _ENDED or any(owner.kind != _NODE for owner in owners):
        return None
    ready = any(
        (condition.type, condition.status) == ("Ready", "True")
        for condition in pod.status.conditions or ()
    )
    return workload_of("Pod", pod.metadata, pod.spec, 1, int(ready))


BARE_PODS: Final = PODS.read_as(Decoders.of(BarePodFields), project_bare_pod)
"""Pods that no controller has created; None in place of each other one."""
