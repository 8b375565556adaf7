"""What must hold after each event of SharePods and pods, whoever writes: the invariants of A5.

    with ShareWatch(client, nodes) as watch:
        ...
        watch.require_unbroken()

Σ of requests and memory by virtual GPU, placed or bound; one GPU for all that are bound to it;
distinct ports on a node; nobody is bound twice. It reads JSON alone and shares no code with ours.

Two kinds come in two streams. Both have the revisions of one etcd, so their events are put into
one order. A marker in each shows how far they have come.
"""

import itertools
import threading
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

import urllib3

from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.waiting import wait_ended, wait_until
from vgpu.model.units import GIB

SHARE_PODS = "/apis/kubeshare.nthu/v1/sharepods"
PODS = "/api/v1/pods"

CARD = 16 * GIB
PORTS = range(50051, 50562)

BINDING = ("uuid", "port")
"""The fields of a share that its binding sets."""

MARKER = "vgpu.test/marker"
GATED = {"schedulingGates": [{"name": MARKER}]}

ENDED = {"Succeeded": {"OnFailure", "Never"}, "Failed": {"Never"}}
"""Phase of a pod -> restart policies with which no other pod follows it."""


class Share(NamedTuple):
    """What one object takes of a virtual GPU; a SharePod and its pod have the same owner."""

    owner: str
    node: str
    gpuid: str
    milli: int
    memory: int
    uuid: str
    port: int


def _numbers(texts, prefix):
    return round(1000 * float(texts[f"{prefix}/gpu_request"])), int(texts[f"{prefix}/gpu_mem"])


def share_of_share_pod(found):
    """The share of a SharePod that is placed and has not ended."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    annotations = metadata.get("annotations") or {}
    node, gpuid = spec.get("nodeName"), annotations.get("kubeshare/GPUID")
    phase = (status.get("PodStatus") or {}).get("phase", "")
    is_over = (spec.get("restartPolicy") or "Always") in ENDED.get(phase, ())
    if not (node and gpuid) or is_over:
        return None
    uuid, port = status.get("BoundDeviceID") or "", status.get("PodManagerPort") or 0
    numbers = _numbers(annotations, "kubeshare")
    return Share(metadata["uid"], node, gpuid, *numbers, uuid, port)


def share_of_pod(found):
    """The share of a living pod that belongs to a SharePod, or that has labels and is placed."""
    metadata, spec = found["metadata"], found["spec"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if found["status"].get("phase") in ENDED:
        return None
    owners = [each for each in metadata.get("ownerReferences") or () if each["kind"] == "SharePod"]
    if owners and "kubeshare/GPUID" in annotations:
        env = {each["name"]: each.get("value") for each in spec["containers"][0].get("env") or ()}
        return Share(
            owners[0]["uid"],
            spec["nodeName"],
            annotations["kubeshare/GPUID"],
            *_numbers(annotations, "kubeshare"),
            env["NVIDIA_VISIBLE_DEVICES"],
            int(env["POD_MANAGER_PORT"]),
        )
    if "vgpu.dev/virtual-gpu" in annotations:
        node, _, gpuid = annotations["vgpu.dev/virtual-gpu"].partition("/")
        numbers = _numbers(labels, "sharedgpu")
        uuid, port = (
            annotations.get(f"sharedgpu/gpu_{name}", "") for name in ("uuid", "manager_port")
        )
        return Share(metadata["uid"], node, gpuid, *numbers, uuid, int(port or 0))
    return None


class Replay:
    """The shares after each event, and each event after which something does not hold."""

    def __init__(self, nodes):
        self.nodes, self.shares, self.broken, self.events = nodes, {}, [], 0

    def see(self, kind, found, share_of):
        """The next event."""
        uid = found["metadata"]["uid"]
        before = self.shares.pop(uid, None)
        after = None if kind == "DELETED" else share_of(found)
        if after is not None and after.node in self.nodes:
            self.shares[uid] = after
        if before == after:
            return
        self.events += 1
        complaints = [
            *_bound_again(before, after),
            *(
                complaint
                for node in {each.node for each in (before, after) if each is not None}
                for complaint in _complaints(
                    {uid: share for uid, share in self.shares.items() if share.node == node}
                )
            ),
        ]
        name, version = found["metadata"]["name"], found["metadata"]["resourceVersion"]
        self.broken += [f"{version} {kind} {name}: {complaint}" for complaint in complaints]


def _bound_again(before, after):
    if before is None or after is None:
        return
    for name in BINDING:
        values = getattr(before, name), getattr(after, name)
        if all(values) and values[0] != values[1]:
            yield f"bound twice: {name} {values[0]}, then {values[1]}"


def _complaints(shares):
    """What does not hold of the shares of one node, by the UIDs of their objects."""
    by_owner, by_gpu, by_port = defaultdict(list), defaultdict(dict), defaultdict(set)
    for uid, share in shares.items():
        by_owner[share.owner].append(share)
        by_gpu[share.gpuid][uid] = share
        if share.port:
            by_port[share.port].add(share.owner)
        if bool(share.uuid) != bool(share.port) or (share.port and share.port not in PORTS):
            yield f"GPU {share.uuid!r} with port {share.port}"
    for owned in by_owner.values():
        if len({share.gpuid for share in owned}) > 1:
            yield f"on two virtual GPUs: {owned}"
        if any(len({getattr(each, name) for each in owned} - {"", 0}) > 1 for name in BINDING):
            yield f"bound otherwise than its pod: {owned}"
    for gpuid, users in by_gpu.items():
        placed = {share.owner: share for uid, share in users.items() if uid == share.owner}
        bound = {share.owner: share for share in users.values() if share.uuid}
        for what, counted in (("placed", placed.values()), ("bound", bound.values())):
            milli = sum(share.milli for share in counted)
            memory = sum(share.memory for share in counted)
            if milli > 1000 or memory > CARD:
                yield f"{gpuid} has {milli} thousandths and {memory} bytes {what}"
        uuids = {share.uuid for share in bound.values()}
        if len(uuids) > 1:
            yield f"{gpuid} has the GPUs {sorted(uuids)}"
    for port, owners in by_port.items():
        if len(owners) > 1:
            yield f"port {port} of {len(owners)}"


class _Stream(threading.Thread):
    """The events of one kind, until a marker of the name ``last``."""

    def __init__(self, client, path):
        super().__init__(name=f"watch of {path}", daemon=True)
        self.client, self.path = client, path
        found = wait_until(lambda: client.get(path), f"{path} is served", failures=(Refused,))
        self.version = found["metadata"]["resourceVersion"]
        self.events, self.failures, self.seen, self.last = [], [], "", None

    def run(self):
        while self.seen != self.last and not self.failures:
            query = {"resourceVersion": self.version, "timeoutSeconds": 30}
            with suppress(urllib3.exceptions.HTTPError):
                for kind, found in self.client.watch(self.path, **query):
                    self._note(kind, found)
                    if self.seen == self.last or self.failures:
                        break

    def _note(self, kind, found):
        if kind == "ERROR":
            self.failures.append(found)
            return
        self.version = found["metadata"]["resourceVersion"]
        self.events.append((int(self.version), kind, found))
        if MARKER in (found["metadata"].get("labels") or ()):
            self.seen = found["metadata"]["name"]


class ShareWatch:
    """All events of SharePods and pods, from its beginning to its end."""

    numbers = itertools.count(1)

    def __init__(self, client, nodes):
        """``nodes`` are those that count; more may be added to them later."""
        self.client, self._replay = client, Replay(nodes)
        self._streams = {
            _Stream(client, SHARE_PODS): share_of_share_pod,
            _Stream(client, PODS): share_of_pod,
        }

    @property
    def events(self):
        """The number of events that were replayed and changed a share."""
        return self._replay.events

    def require_unbroken(self):
        """All that was written before this call has left everything as it must be."""
        self._require_unbroken(self._name())

    def _require_unbroken(self, marker):
        upto = self._mark(marker)
        due = []
        for stream, share_of in self._streams.items():
            assert not stream.failures
            count = sum(version <= upto for version, *_ in stream.events)
            due += [(*event, share_of) for event in stream.events[:count]]
            del stream.events[:count]
        for _, kind, found, share_of in sorted(due, key=lambda event: event[0]):
            self._replay.see(kind, found, share_of)
        broken, self._replay.broken = self._replay.broken, []
        assert not broken

    def _name(self):
        return f"marker-{next(self.numbers)}"

    def _mark(self, name):
        """Write a marker; returns the revision up to which both streams are complete."""
        about = {"name": name, "namespace": "kube-system", "labels": {MARKER: "yes"}}
        pod = objects.pod(name, "kube-system", **GATED)
        share_pod = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "spec": GATED}
        made = [self.client.create({**each, "metadata": about}) for each in (share_pod, pod)]
        for stream in self._streams:
            wait_until(
                lambda stream=stream: stream.seen == name or stream.failures,
                f"{stream.path}: its marker",
            )
        for each in made:
            self.client.delete(each, grace_seconds=0)
        return min(int(each["metadata"]["resourceVersion"]) for each in made)

    def __enter__(self):
        for stream in self._streams:
            stream.start()
        return self

    def __exit__(self, *_):
        name = self._name()
        for stream in self._streams:
            stream.last = name
        self._require_unbroken(name)
        for stream in self._streams:
            wait_ended(stream, "the watch ends")
