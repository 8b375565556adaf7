"""An API server in a dictionary: the hands of apply and restore, with preconditions and faults.

hands = FakeHands(pod("a"), node("gpu-1"))
hands.refuse("evict", PDB)              # the next eviction is refused
hands.refuse("evict", after=UNREACHABLE)  # the next one is done, and its answer is lost
hands.first("evict", lambda: hands.touch("a"))  # somebody is faster
"""

from collections import defaultdict, deque

import msgspec

from reconciler.model import ObjectKind
from tests.reconciler.samples import NOW, replace
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import ObjectPage
from vgpu.model.objects import SHARE_POD, Namespace, Node

UNREACHABLE = ClusterError(0, "Unreachable", "https://api: read timed out")
PDB = ClusterError(
    429,
    "TooManyRequests",
    "Cannot evict pod as it would violate the pod's disruption budget.",
    None,
    ("The disruption budget web needs 1 healthy pods and has 1 currently",),
)
BUSY = ClusterError(429, "HTTP 429", "Too many requests, please try again later.", 1.0)
NOT_FOUND = ClusterError(404, "NotFound", "not found")
CONFLICT = ClusterError(409, "Conflict", "the object has been modified")


class FakeClient:
    """Pods and SharePods by name, nodes and Namespaces by name; every write makes a new version."""

    def __init__(self, *objects):
        self.objects = {}
        self.calls = []
        self.events = []
        self.malformed = ()
        self.owners = {}  # name -> its object as JSON, or an error
        self._version = 100
        self._faults = defaultdict(deque)
        self._first = defaultdict(deque)
        for each in objects:
            self.put(each)

    # ------------------------------------------------------------ what tests do

    def put(self, each):
        self.objects[self._key_of(each)] = each

    def remove(self, name, kind=ObjectKind.POD):
        self.objects = {k: v for k, v in self.objects.items() if (k[0], k[2]) != (kind, name)}

    def get(self, name, kind=ObjectKind.POD):
        (found,) = [v for k, v in self.objects.items() if (k[0], k[2]) == (kind, name)]
        return found

    def has(self, name, kind=ObjectKind.POD):
        return any((k[0], k[2]) == (kind, name) for k in self.objects)

    def touch(self, name, kind=ObjectKind.POD, **fields):
        """Another client changes it."""
        self.put(replace(self.get(name, kind), resource_version=self._next(), **fields))

    def annotate(self, name, kind=ObjectKind.POD, **annotations):
        """Another client sets annotations, None removes one."""
        before = self.get(name, kind).annotations
        self.touch(name, kind, annotations=_merged(before, annotations))

    def refuse(self, method, error=None, *, after=None, times=1):
        """The next calls fail: with ``after`` when they are done."""
        self._faults[method].extend([(error, after)] * times)

    def first(self, method, deed):
        """Just before the next call is served, this happens."""
        self._first[method].append(deed)

    def count(self, method):
        return self.calls.count(method)

    # ------------------------------------------------------------ the hands

    def pod(self, namespace, name):
        return self._call("pod", lambda: self._find(ObjectKind.POD, namespace, name))

    def sharepod(self, namespace, name):
        return self._call("sharepod", lambda: self._find(ObjectKind.SHARE_POD, namespace, name))

    def node(self, name):
        return self._call("node", lambda: self._find(ObjectKind.NODE, "", name))

    def namespace(self, name):
        return self._call("namespace", lambda: self._find(ObjectKind.NAMESPACE, "", name))

    def object_text(self, *parts):
        found = self.owners.get(parts[-1], NOT_FOUND)
        return self._call("object_text", lambda: _raised(found))

    def pods(self, *, keep=None, field_selector=""):
        wanted = dict(part.split("=") for part in field_selector.split(",") if part)
        fields = {"spec.nodeName": lambda pod: pod.node, "status.phase": lambda pod: pod.phase}

        def listed():
            pods = [each for key, each in self.objects.items() if key[0] is ObjectKind.POD]
            return [p for p in pods if all(fields[k](p) == v for k, v in wanted.items())]

        yield ObjectPage(tuple(self._call("pods", listed)), malformed=self._unread(ObjectKind.POD))

    def sharepod_pages(self):
        def listed():
            return [each for key, each in self.objects.items() if key[0] is ObjectKind.SHARE_POD]

        pods = tuple(self._call("sharepod_pages", listed))
        yield ObjectPage(pods, malformed=self._unread(ObjectKind.SHARE_POD))

    def evict(self, pod, resource_version, *, dry_run=False):
        def evicted():
            self._guarded(ObjectKind.POD, pod, resource_version)
            if not dry_run:
                self.remove(pod.name)

        self._call("evict", evicted)

    def patch_pod(self, pod, resource_version, annotations, *, dry_run=False):
        return self._patch(
            "patch_pod", ObjectKind.POD, (pod, resource_version), annotations, dry_run
        )

    def patch_sharepod(
        self, sharepod, resource_version, annotations, *, node=msgspec.UNSET, dry_run=False
    ):
        fields = {} if node is msgspec.UNSET else {"node": node or ""}
        kind = ObjectKind.SHARE_POD
        of = (sharepod, resource_version)
        return self._patch("patch_sharepod", kind, of, annotations, dry_run, **fields)

    def patch_node(self, name, resource_version, annotations, *, dry_run=False):
        return self._patch(
            "patch_node", ObjectKind.NODE, (name, resource_version), annotations, dry_run
        )

    def patch_namespace(self, name, resource_version, annotations, *, dry_run=False):
        of = (name, resource_version)
        return self._patch("patch_namespace", ObjectKind.NAMESPACE, of, annotations, dry_run)

    def write_event(self, note):
        self._call("write_event", lambda: self.events.append(note))

    # ------------------------------------------------------------ how

    def _call(self, method, deed):
        self.calls.append(method)
        if self._first[method]:
            self._first[method].popleft()()
        error, after = self._faults[method].popleft() if self._faults[method] else (None, None)
        if error is not None:
            raise error
        answer = deed()
        if after is not None:
            raise after
        return answer

    def _unread(self, kind):
        return tuple(each for each in self.malformed if each.kind == kind)

    def _patch(self, method, kind, of, annotations, dry_run, **fields):
        def patched():
            found = self._guarded(kind, *of)
            merged = _merged(found.annotations, annotations)
            made = replace(found, annotations=merged, resource_version=self._next(), **fields)
            if not dry_run:
                self.put(made)
            return made

        return self._call(method, patched)

    def _guarded(self, kind, about, resource_version):
        by_name = kind in (ObjectKind.NODE, ObjectKind.NAMESPACE)
        where = ("", about) if by_name else (about.namespace, about.name)
        found = self._find(kind, *where)
        if not by_name and found.ref.uid != about.uid:
            raise CONFLICT
        if found.resource_version != resource_version:
            raise CONFLICT
        return found

    def _find(self, kind, namespace, name):
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise NOT_FOUND
        return found

    def _next(self):
        self._version += 1
        return str(self._version)

    @staticmethod
    def _key_of(each):
        if isinstance(each, Node):
            return ObjectKind.NODE, "", each.name
        if isinstance(each, Namespace):
            return ObjectKind.NAMESPACE, "", each.name
        kind = ObjectKind.SHARE_POD if SHARE_POD in each.annotations else ObjectKind.POD
        return kind, each.ref.namespace, each.ref.name


def _raised(found):
    if isinstance(found, Exception):
        raise found
    return found


def _merged(before, annotations):
    return {key: text for key, text in {**before, **annotations}.items() if text is not None}


class FakeTime:
    """Time that passes only when somebody waits; ``woken`` is what waiting answers."""

    def __init__(self):
        self.now = NOW
        self.waited = []
        self.woken = False

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.waited.append(seconds)
        self.now += seconds
        return self.woken
