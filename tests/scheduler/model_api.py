"""A model of the API server for the scheduler: pods, Leases and a node, with an API server's rules.

It checks preconditions, may apply a write whose sender no longer waits, and lets others act between
two requests.
"""

import itertools

from msgspec import structs

from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Node, Pod

UNITS = 8
"""Units of gpushare on each GPU."""


def gpushare_node(name, count):
    capacity = {"aliyun.com/gpu-mem": count * UNITS, "aliyun.com/gpu-count": count}
    return Node(name, capacity=capacity, allocatable=capacity)


class ModelApi:
    """Pods by name, Leases, and one node.

    ``fault`` is what goes wrong with the next requests; ``interruptions`` run before requests, by
    their number; ``intrusions`` is how many patches of the node find that it has changed.
    """

    server = "a model"

    def __init__(self, stored=None):
        self.pods, self.events, self.late = {}, [], []
        self.versions = itertools.count(1)
        self.fault = "none"
        self.leases, self.interruptions, self.requests = {}, {}, 0
        self.stored, self.intrusions, self.patches = stored, 0, 0
        self.locks_at_bind = []
        self.written_events = []

    def _request(self):
        self.requests += 1
        interruption = self.interruptions.pop(self.requests, None)
        if interruption is not None:
            interruption()

    # ------------------------------------------------------------ pods

    def store(self, pod):
        pod = structs.replace(pod, resource_version=str(next(self.versions)))
        self.pods[pod.ref.name] = pod
        self.events.append((pod.ref.name, pod))
        return pod

    def pending(self, name, units, priority=0):
        """A new pod that asks for so many units of gpushare."""
        container = Container("main", {"aliyun.com/gpu-mem": units})
        ref = PodRef(f"uid-{name}", "ns", name)
        pod = Pod(ref, containers=(container,), phase="Pending", priority=priority)
        return self.store(pod).ref

    def delete(self, name):
        del self.pods[name]
        self.events.append((name, None))

    def pod(self, namespace, name):
        self._request()
        if self.fault == "down":
            raise ClusterError(0, "Unreachable", "no answer")
        if name not in self.pods:
            raise ClusterError(404, "NotFound", name)
        return self.pods[name]

    def _version(self, ref, version):
        """The pod in exactly this state."""
        pod = self.pods.get(ref.name)
        if pod is None:
            raise ClusterError(404, "NotFound", ref.name)
        if pod.ref.uid != ref.uid or pod.resource_version != version:
            raise ClusterError(409, "Conflict", ref.name)
        return pod

    def apply(self, ref, version, node, annotations):
        pod = self._version(ref, version)
        if pod.node:
            raise ClusterError(409, "Conflict", ref.name)
        self.store(structs.replace(pod, node=node, annotations={**pod.annotations, **annotations}))

    def bind(self, ref, version, node, annotations):
        self._request()
        if self.stored is not None:
            self.locks_at_bind.append(self.stored.annotations)
        fault = self.fault
        if fault == "refused":
            raise ClusterError(403, "Forbidden", "no")
        if fault in ("late", "down"):
            self.late.append((ref, version, node, annotations))
            raise ClusterError(0, "Unreachable", "no answer")
        if fault != "lost request":
            self.apply(ref, version, node, annotations)
        if fault in ("lost request", "lost answer"):
            raise ClusterError(504, "Timeout", "no answer")

    def patch_pod(self, ref, version, annotations):
        self._request()
        pod = self._version(ref, version)
        return self.store(structs.replace(pod, annotations={**pod.annotations, **annotations}))

    # ------------------------------------------------------------ Leases

    def node_claims(self, namespace, name):
        self._request()
        if self.fault == "lease down":
            raise ClusterError(0, "Unreachable", "no answer")
        return self.leases.get(name)

    def write_node_claims(self, namespace, name, text, version, node):
        self._request()
        known, _ = self.leases.get(name, ("", ""))
        if self.fault == "lease not written":
            raise ClusterError(0, "Unreachable", "no answer")
        if known != version:
            raise ClusterError(409, "Conflict", name)
        self.leases[name] = (str(next(self.versions)), text)
        if self.fault == "lease written":
            raise ClusterError(0, "Unreachable", "no answer")
        return self.leases[name][0]

    # ------------------------------------------------------------ the node

    def node(self, name):
        if self.fault == "down":
            raise ClusterError(0, "Unreachable", "no answer")
        return self.stored

    def patch_node(self, name, version, annotations):
        self.patches += 1
        if self.intrusions:
            self.intrusions -= 1
            self.annotate({})
        if version != self.stored.resource_version:
            raise ClusterError(409, "Conflict", name)
        self.annotate(annotations)

    def annotate(self, annotations):
        """Somebody changes the node."""
        merged = {**self.stored.annotations, **annotations}
        kept = {key: text for key, text in merged.items() if text is not None}
        version = str(next(self.versions))
        self.stored = structs.replace(self.stored, annotations=kept, resource_version=version)

    # ------------------------------------------------------------ events

    def write_event(self, note):
        self.written_events.append(note)
