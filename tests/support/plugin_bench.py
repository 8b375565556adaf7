"""A status manager with an API server in a dictionary, and a watch that a test moves on.

bench = Bench(role, gpus)
bench.add(pod, bound=["main"], served=True)
bench.round()
bench.watch()                      # the watch has caught up
bench.server.refuse("patch_pod", 500)
"""

from collections import Counter
from types import SimpleNamespace

from msgspec.structs import replace

from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.status_manager import StatusManager
from tests.support.plugin_pods import NODE, NOW, admitted_pod_of, by_name, no_capacity, node
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import Keep


class Server:
    """As far as a status manager needs one; every write makes a new version, and needs the last."""

    def __init__(self):
        self.objects = {}
        self.malformed = []
        self.node = node()
        self.config_maps = {}
        self.events = []
        self.calls = []
        self.refusals = {}
        self.version = 100

    def refuse(self, call, status, *about, times=1):
        """The next calls of this name, about this pod if one is named, are refused."""
        self.refusals.setdefault((call, *about), []).extend([status] * times)

    def _next(self):
        self.version += 1
        return str(self.version)

    def _called(self, call, about=""):
        self.calls.append((call, about))
        for key in ((call, about), (call,)):
            if self.refusals.get(key):
                status = self.refusals[key].pop(0)
                if isinstance(status, Exception):
                    raise status
                raise ClusterError(status, "Refused", "by the test")

    def annotated(self, of, annotations):
        """It with these annotations, in a new version."""
        merged = {**of.annotations, **annotations}
        kept = {key: text for key, text in merged.items() if text is not None}
        return replace(of, annotations=kept, resource_version=self._next())

    def patch_pod(self, ref, version, annotations):
        self._called("patch_pod", ref.name)
        there = self.objects.get(ref.name)
        if there is None:
            raise ClusterError(404, "NotFound", ref.name)
        if there.resource_version != version:
            raise ClusterError(409, "Conflict", ref.name)
        self.objects[ref.name] = self.annotated(there, annotations)
        return self.objects[ref.name]

    def pods(self, *, keep, namespace, field_selector):
        """A list of one name."""
        self._called("pods", field_selector)
        key, _, name = field_selector.partition("=")
        assert (key, keep) == ("metadata.name", Keep.ALL)
        found = self.objects.get(name)
        there = found is not None and found.ref.namespace == namespace
        unread = tuple(each for each in self.malformed if each.ref.name == name)
        yield SimpleNamespace(objects=(found,) if there else (), malformed=unread)

    def patch_node(self, name, version, annotations, *, labels=None):
        self._called("patch_node")
        assert name == NODE
        if self.node.resource_version != version:
            raise ClusterError(409, "Conflict", name)
        self.node = self.annotated(self.node, annotations)
        self.node = replace(self.node, labels={**self.node.labels, **(labels or {})})
        return self.node

    def patch_node_status(self, name, operations):
        self._called("patch_node_status")
        assert name == NODE
        test, *adds = operations
        assert test == {"op": "test", "path": "/metadata/uid", "value": self.node.uid}
        resources = {
            "capacity": dict(self.node.capacity),
            "allocatable": dict(self.node.allocatable),
        }
        for each in adds:
            _, _, where, resource = each["path"].split("/")
            resources[where][resource.replace("~1", "/")] = int(each["value"])
        self.node = replace(self.node, **resources, resource_version=self._next())
        return self.node

    def versioned_config_map(self, namespace, name):
        self._called("versioned_config_map")
        return self.config_maps.get((namespace, name))

    def write_config_map(self, namespace, name, data, version):
        self._called("write_config_map")
        if self.config_maps.get((namespace, name), ({}, ""))[1] != version:
            raise ClusterError(409, "Conflict", name)
        self.config_maps[namespace, name] = dict(data), self._next()
        return str(self.version)

    def write_event(self, note):
        self._called("write_event", note.name)
        self.events.append(note)


class Bench:
    def __init__(self, adapter, gpus):
        self.adapter = adapter
        self.server = Server()
        self.devices = adapter.devices(gpus)
        self.admitted_pods, self.served, self.refused = {}, set(), set()
        self.shown_pods, self.shown_node = {}, self.server.node
        self.steps = []
        self.unix, self.seconds = NOW, 1000.0
        self.status_manager = StatusManager(
            self.server,
            adapter,
            self.look,
            self.steps.append,
            clock=lambda: self.unix,
            monotonic=lambda: self.seconds,
        )

    def look(self):
        return DesiredState(
            self.devices,
            by_name(self.devices),
            dict(self.admitted_pods),
            dict(self.shown_pods),
            self.shown_node,
            frozenset(self.served),
            frozenset(self.refused),
        )

    def add(self, pod, bound=(), *, served=False, refused=False):
        """A pod of the node, admitted unless it is refused; the watch shows it."""
        uid = pod.kubelet_uid
        self.server.objects[pod.ref.name] = self.shown_pods[uid] = pod
        if not refused:
            self.bind(pod, bound)
        if served or refused:
            self.served.add(uid)
        if refused:
            self.refused.add(uid)

    def bind(self, pod, bound):
        allocations = self.adapter.claim(pod, NODE, self.devices, no_capacity(self.devices))
        self.admitted_pods[pod.kubelet_uid] = admitted_pod_of(pod, allocations, bound)

    def watch(self):
        """The watch has caught up with the server."""
        self.shown_pods = {pod.kubelet_uid: pod for pod in self.server.objects.values()}
        self.shown_node = self.server.node

    def round(self, after=0.0):
        """One round, so many seconds later."""
        self.unix += after
        self.seconds += after
        return self.status_manager.round()

    def annotations_of(self, name):
        """A pod's annotations at the server."""
        return self.server.objects[name].annotations

    def count(self, call):
        return Counter(name for name, _ in self.server.calls)[call]
