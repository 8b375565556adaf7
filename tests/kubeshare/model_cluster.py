"""A cluster in memory: what the API server, kube-scheduler and the kubelets do with objects.

It applies the controllers' steps with the preconditions that the API server checks. Events wait in
``events`` until somebody delivers them.
"""

import itertools

from msgspec import structs

from kubeshare.model import ClusterNode, ClusterPod, GpuRequest, NodeAmounts, NodeNeeds, SharePod
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    EvictPod,
    PatchSharePod,
)
from vgpu.kube.merge_patches import kept
from vgpu.model.names import PodRef
from vgpu.model.objects import OwnerReference, Pod
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.node import holder_labels, holder_name
from vgpu.schemes.kubeshare.sharepod import GPUID, Locality

GPU_BYTES = 16 * GIB
INSUFFICIENT = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


class Refused(Exception):  # noqa: N818  # an answer, not a fault
    """The API server does not do it."""


def share_pod(name, milli=500, gib=1, *, node="", gpuid="", policy="Always", **fields):
    """A SharePod without status; ``fields`` are of the SharePod."""
    pod = Pod(PodRef(f"uid-{name}", "ns", name), "1", node, restart_policy=policy)
    request = GpuRequest(milli, 1000, gib * GIB)
    return SharePod(pod, request=request, gpuid=gpuid, **fields)


def labelled(**locality):
    """Locality labels."""
    return Locality(**locality)


def node(name, gpus=1, **fields):
    """A node with so many GPUs of 16 GiB."""
    uuids = {f"GPU-{name}-{number}": GPU_BYTES for number in range(gpus)}
    amounts = NodeAmounts(4000, 16 * GIB, gpus, 110)
    return ClusterNode(name, allocatable=amounts, gpu_bytes=uuids, **fields)


def status_of(phase):
    """A pod's status, with the nulls that a kubelet's has."""
    ready = {"type": "Ready", "status": str(phase == "Running"), "lastProbeTime": None}
    return {"phase": phase, "conditions": [ready]}


class ModelCluster:
    """The truth, and the events about it that nobody has read yet."""

    def __init__(self, *nodes):
        self.numbers = itertools.count(100)
        self.share_pods, self.pods, self.nodes = {}, {}, {}
        self.events = []
        self.created, self.deleted, self.evicted = [], [], []
        self.now = 1_000_000.0
        for each in nodes:
            self.set_node(each)

    # ------------------------------------------------------------ objects

    def set_node(self, each):
        self.nodes[each.name] = each
        self.events.append(("node", each.name, each))

    def remove_node(self, name):
        self.nodes.pop(name, None)
        self.events.append(("node", name, None))

    def store(self, stored):
        """A new version of a SharePod or pod."""
        version = str(next(self.numbers))
        stored = structs.replace(stored, pod=structs.replace(stored.pod, resource_version=version))
        if isinstance(stored, ClusterPod) and stored.labelled is not None:
            stored = structs.replace(stored, labelled=_as_of(stored))
        kind, objects = self._kind(stored)
        key = f"{stored.ref.namespace}/{stored.ref.name}"
        objects[key] = stored
        self.events.append((kind, key, stored))
        return stored

    def remove(self, stored):
        kind, objects = self._kind(stored)
        key = f"{stored.ref.namespace}/{stored.ref.name}"
        known = objects.get(key)
        if known is not None and known.ref.uid == stored.ref.uid:
            del objects[key]
            self.events.append((kind, key, None))

    def _kind(self, stored):
        if isinstance(stored, SharePod):
            return "share_pod", self.share_pods
        return "pod", self.pods

    def deliver(self, state, count=None):
        """Let a state see events, in their order."""
        affected = []
        while self.events and count != 0:
            kind, key, found = self.events.pop(0)
            affected.append(getattr(state, f"set_{kind}")(key, found))
            count = None if count is None else count - 1
        return affected

    def read_all(self, state):
        """A state that lists everything."""
        self.events.clear()
        for kind, objects in (
            ("node", self.nodes),
            ("pod", self.pods),
            ("share_pod", self.share_pods),
        ):
            for key, found in objects.items():
                getattr(state, f"set_{kind}")(key, found)

    # ------------------------------------------------------------ the API server

    def apply(self, step):
        """Apply a step; returns the new SharePod, if it is one. Raises Refused."""
        match step:
            case PatchSharePod():
                return self._patch(step)
            case CreateSharePodPod():
                return self._create_pod(step.share_pod)
            case CreateHolder():
                return self._create_holder(step.name)
            case DeletePod():
                pod = self._exact(step.ref)
                self.deleted.append((pod, step.reason))
                return self.end(pod)
            case BindPod():
                return self._bind(step.after)
            case EvictPod():
                pod = self._exact(step.ref)
                if pod.pod.resource_version != step.resource_version:
                    raise Refused(step)
                self.evicted.append((pod, step.reason))
                return self.end(pod)

    def _bind(self, after):
        pod = self._exact(after.ref)
        if pod.pod.resource_version != after.pod.resource_version or pod.pod.node:
            raise Refused(after)
        bound = structs.replace(pod.pod, node=after.node)
        labelled = structs.replace(after, needs=NodeNeeds(), conditions=())
        self.store(structs.replace(pod, pod=bound, labelled=labelled))
        return after

    def _patch_labelled(self, step):
        pod = self._exact(step.before.ref)
        if pod.pod.resource_version != step.before.pod.resource_version:
            raise Refused(step)
        return self.store(structs.replace(pod, labelled=step.after)).labelled

    def _patch(self, step):
        if step.before.is_pod:
            return self._patch_labelled(step)
        key = f"ns/{step.before.ref.name}"
        known = self.share_pods.get(key)
        if known is None or known.ref.uid != step.before.ref.uid:
            raise Refused(step)
        if known.pod.resource_version != step.before.pod.resource_version:
            raise Refused(step)
        return self.store(structs.replace(step.after, copied=kept(step.after.copied)))

    def _create_pod(self, of):
        key = f"ns/{of.ref.name}"
        if key in self.pods:
            raise Refused(of)
        number = next(self.numbers)
        pod = ClusterPod(
            Pod(
                PodRef(f"pod-{number}", "ns", of.ref.name),
                node=of.node,
                annotations={GPUID: of.gpuid} if of.gpuid else {},
                owner=OwnerReference("SharePod", of.ref.name, of.ref.uid),
                phase="Pending",
            ),
            request=of.request,
            locality=of.locality,
            port=of.port,
            uuid=of.bound,
            status=status_of("Pending"),
        )
        self.created.append(pod)
        return self.store(pod)

    def _create_holder(self, name):
        pod_name = holder_name(*name)
        if f"kube-system/{pod_name}" in self.pods:
            raise Refused(name)
        number = next(self.numbers)
        pod = Pod(
            PodRef(f"holder-{number}", "kube-system", pod_name),
            labels=holder_labels(*name),
            phase="Pending",
        )
        return self.store(ClusterPod(pod, NodeAmounts(gpus=1, pods=1)))

    def _exact(self, ref):
        known = self.pods.get(f"{ref.namespace}/{ref.name}")
        if known is None or known.ref.uid != ref.uid:
            raise Refused(ref)
        return known

    # ------------------------------------------------------------ kube-scheduler and kubelets

    def holders(self):
        return [pod for pod in self.pods.values() if pod.ref.namespace == "kube-system"]

    def real_pods(self):
        """The pods of SharePods, and the pods with labels that are bound."""
        return [
            pod
            for pod in self.pods.values()
            if pod.share_pod_uid or (pod.labelled is not None and pod.pod.node)
        ]

    def free_gpus(self, name):
        """The GPUs that no living holder or native pod of a node has."""
        held = {
            pod.uuid or pod.pod.message
            for pod in self.pods.values()
            if pod.amounts.gpus and pod.pod.node == name and not pod.pod.terminal
        }
        known = self.nodes.get(name)
        return sorted(set(known.gpu_bytes if known else ()) - held)

    def serve_holder(self, pod, uuid=None):
        """kube-scheduler and the kubelet start a holder, or find no GPU."""
        name = pod.pod.labels["kubeshare/nodeName"]
        free_gpus = self.free_gpus(name)
        if pod.pod.phase != "Pending" or name not in self.nodes:
            return
        if not free_gpus:
            since = pod.unschedulable_since or self.now
            waits = structs.replace(pod.pod, unschedulable=INSUFFICIENT)
            self.store(structs.replace(pod, pod=waits, unschedulable_since=since))
            return
        if uuid not in free_gpus:
            uuid = free_gpus[0]
        runs = structs.replace(pod.pod, node=name, phase="Running", unschedulable="")
        self.store(structs.replace(pod, pod=runs, uuid=uuid, unschedulable_since=None))

    def native_pod(self, name):
        """A pod of no sharing system takes a GPU, if one is free."""
        free_gpus = self.free_gpus(name)
        if free_gpus:
            number = next(self.numbers)
            pod = Pod(
                PodRef(f"n{number}", "ns", f"native-{number}"),
                node=name,
                phase="Running",
                message=free_gpus[0],
            )
            self.store(ClusterPod(pod, NodeAmounts(gpus=1, pods=1)))

    def natives(self):
        return [pod for pod in self.pods.values() if pod.ref.name.startswith("native")]

    def turn(self, pod, phase):
        """The kubelet reports another phase of a real pod."""
        if not pod.pod.terminal:
            later = structs.replace(pod.pod, phase=phase)
            status, ready = status_of(phase), phase == "Running"
            self.store(structs.replace(pod, pod=later, status=status, is_ready=ready))

    def end(self, pod):
        """A pod is deleted: it goes when its kubelet ends it; a pod without one goes at once."""
        if pod.ref.namespace == "kube-system" or not pod.pod.node:
            self.remove(pod)
        elif pod.pod.deleted_at is None:
            self.store(structs.replace(pod, pod=structs.replace(pod.pod, deleted_at=self.now)))

    def finish_ending(self):
        """The kubelets report that deleted pods are gone; owners' pods are collected."""
        uids = {each.ref.uid for each in self.share_pods.values()}
        for pod in list(self.pods.values()):
            if pod.is_deleting:
                self.remove(pod)
            elif pod.share_pod_uid and pod.share_pod_uid not in uids:
                self.end(pod)


def _as_of(pod):
    """A pod with labels as a SharePod, of the version and in the phase of the pod."""
    labelled, now = pod.labelled, pod.pod
    node = now.node or labelled.node
    seen = structs.replace(now, node=node, restart_policy="Never")
    return structs.replace(labelled, pod=seen)
