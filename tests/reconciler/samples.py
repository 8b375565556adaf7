"""Pods, nodes and snapshots as the reconciler sees them: each scheme, healthy and ill.

A pod is made healthy and then made ill::

    snapshot(refused(pod("train-0")), pod("train-1", "gaia"))

Everything is an hour old by default, so that every grace has passed. Annotations are
written by the schemes' own codecs. A snapshot without nodes gets a healthy one for each name
that its pods mention.
"""

import zlib

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import (
    Coverage,
    Edit,
    Evict,
    Finding,
    ObjectKind,
    ObjectRef,
    RemoveFolder,
    Scope,
    Snapshot,
)
from reconciler.plan import resolve
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.reconciler_state import ReconcilerState
from vgpu.inventory import Objects, Units, inventory
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import (
    BOUND_DEVICE,
    SHARE_POD,
    Container,
    ContainerState,
    Node,
    OwnerReference,
    Pod,
    Status,
)
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB
from vgpu.schemes.codec import HandshakeState
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.kubeshare.labels import PREFIX as LABELS
from vgpu.schemes.kubeshare.node import (
    GPU_INFO,
    HOLDER_NAMESPACE,
    format_gpu_info,
    holder_labels,
    holder_name,
)
from vgpu.schemes.kubeshare.sharepod import GPUID, OWNER, PREFIX
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.node import handshake_text, lock_text

replace = msgspec.structs.replace

NOW = 1_790_000_000.0
"""Unix seconds of every snapshot."""

MINUTE, HOUR = 60.0, 3600.0

CODECS = {
    "volcano": Volcano(VOLCANO),
    "hami": Volcano(HAMI),
    "gpushare": Gpushare(),
    "gaia": Gaia(),
    "kubeshare": KubeShare(),
}
"""By style: the four schemes, and HAMi's spelling of Volcano's."""

CODECS_IN_USE = tuple(CODECS.values())

GPU = 40 * GIB
SHARE = 8 * GIB
GPUS = 2
"""Of each node."""

_LIMITS = {
    "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": SHARE // MIB},
    "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": SHARE // MIB},
    "gpushare": {"aliyun.com/gpu-mem": SHARE // GIB},
    "gaia": {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": SHARE // GAIA_MEMORY_BLOCK},
    "kubeshare": {},
}
_CORES = {"volcano": 0, "hami": 0, "gpushare": None, "gaia": 200, "kubeshare": 200}
_CAPACITY = {
    "volcano": {
        "volcano.sh/vgpu-number": 10 * GPUS,
        "volcano.sh/vgpu-memory": GPUS * GPU // MIB,
        "volcano.sh/vgpu-cores": 100 * GPUS,
    },
    "hami": {"nvidia.com/gpu": 10 * GPUS},  # the scheduler alone counts gpumem and gpucores
    "gpushare": {"aliyun.com/gpu-mem": GPUS * GPU // GIB, "aliyun.com/gpu-count": GPUS},
    "gaia": {
        "tencent.com/vcuda-core": 100 * GPUS,
        "tencent.com/vcuda-memory": GPUS * GPU // GAIA_MEMORY_BLOCK,
    },
    "kubeshare": {"nvidia.com/gpu": GPUS},
}

# ---------------------------------------------------------------- nodes


def uuid(node, gpu):
    """The UUID of a GPU of a node."""
    return f"GPU-{zlib.crc32(node.encode()):08x}-0000-4000-8000-{gpu:012x}"


def gpus(node, gpuid="abcde"):
    """The GPUs of a node, the first of them with a virtual GPU of KubeShare's."""
    return tuple(
        Device(
            uuid(node, index),
            index,
            GPU,
            slots=10,
            model="A100",
            handles=(gpuid,) * (not index),
            minor=index,
        )
        for index in range(GPUS)
    )


def node(name="gpu-1", *styles, plugin=True, ready=True, annotations=None, **fields):
    """A node that shares its GPUs in these styles, in all of them if none is named.

    Without ``plugin`` it has the capacity, but nothing of it is allocatable.
    """
    styles = styles or tuple(CODECS)
    capacity = {}
    for style in styles:
        for key, units in _CAPACITY[style].items():
            capacity[key] = max(units, capacity.get(key, 0))
    own = {}
    for style in {"volcano", "hami"} & {*styles}:
        own |= CODECS[style].register(gpus(name))
    if "kubeshare" in styles:
        own[GPU_INFO] = format_gpu_info(gpus(name), name)
    return Node(
        name=name,
        resource_version="7",
        annotations=own | (annotations or {}),
        capacity=capacity,
        allocatable=capacity if plugin else dict.fromkeys(capacity, 0),
        ready=ready,
        **fields,
    )


def lock(owner=None, age=HOUR, style="hami"):
    """A node's annotation: a scheduler's lock for this pod; Volcano's does not say whose it is."""
    key = CODECS[style].key_set.locks[0]
    return {key: lock_text(NOW - age, owner.ref if owner and style == "hami" else None)}


def handshake(state=HandshakeState.DELETED, age=HOUR, style="hami"):
    """A node's annotation: the last heartbeat between scheduler and plugin."""
    key_set = CODECS[style].key_set
    return {key_set.handshake[0]: handshake_text(state, NOW - age, key_set)}


# ---------------------------------------------------------------- pods


API_VERSIONS = {
    "Job": "batch/v1",
    **dict.fromkeys(("Node", "Pod", "ReplicationController"), "v1"),
    "PyTorchJob": "kubeflow.org/v1",
}
"""By kind, where it is not ``apps/v1``."""


def owner(kind="ReplicaSet", name="train", api_version=None):
    """A controller."""
    version = api_version or API_VERSIONS.get(kind, "apps/v1")
    return OwnerReference(kind, name, f"uid-of-{kind}-{name}", version)


def pod(
    name="train-0",
    style="volcano",
    *,
    node="gpu-1",
    gpu=0,
    claim=Phase.ASSIGNED,
    phase=None,
    namespace="ml",
    uid=None,
    age=HOUR,
    kind="ReplicaSet",
    annotations=None,
    **fields,
):
    """A pod that asks for an eighth of a GPU and, with a claim, has it reserved or allocated.

    It runs if its claim is assigned and waits otherwise. ``kind`` is its owner's, None for a bare
    pod; all pods of one kind have one owner unless ``owner`` is set.
    """
    ref = PodRef(uid or f"uid-of-{namespace}-{name}", namespace, name)
    phase = phase or ("Running" if claim is Phase.ASSIGNED else "Pending")
    own, labels = _asked(style)
    if claim is not None:
        own |= claimed(style, ref, node, gpu=gpu, phase=claim, age=age)
    started = {"started_at": NOW - age} if node else {}
    return Pod(
        **{
            "ref": ref,
            "resource_version": "1",
            "node": node,
            "annotations": own | (annotations or {}),
            "labels": labels,
            "containers": (Container("main", _LIMITS[style]),),
            "phase": phase,
            "statuses": _statuses(phase),
            "created_at": NOW - age,
            "scheduled_at": NOW - age,
            "owner": owner(kind) if kind else None,
            "status_at": NOW - age if phase in ("Pending", "Failed") else None,
            **started,
            **fields,
        }
    )


def claimed(style, ref, node, *, gpu=0, phase=Phase.ASSIGNED, age=HOUR):
    """The annotations that promise or give a pod its share of a GPU, in a scheme's own words."""
    devices = {name: device for device in gpus(node or "gpu-1") for name in device.names}
    where = "abcde" if style == "kubeshare" else str(gpu)
    if style in ("volcano", "hami"):
        where = uuid(node or "gpu-1", gpu)
    container = "" if style == "kubeshare" else "main"
    claim = Claim(
        scheme=CODECS[style].scheme,
        pod=ref,
        node=node,
        allocations=(Allocation(container, (Share(where, SHARE, _CORES[style]),), phase),),
        assumed_at=NOW - age if phase is Phase.ASSUMED else None,
        unserved=("main",) if phase is Phase.ASSUMED and style in ("volcano", "hami") else (),
    )
    return CODECS[style].annotations(claim, devices, ("main",))


def _asked(style):
    """Annotations and labels of what the user asks for."""
    if style != "kubeshare":
        return {}, {}
    return {
        f"{PREFIX}gpu_request": "0.2",
        f"{PREFIX}gpu_limit": "1.0",
        f"{PREFIX}gpu_mem": str(SHARE),
    }, {}


def _statuses(phase):
    states = {
        "Running": Status("main", ContainerState.RUNNING),
        "Pending": Status("main", ContainerState.WAITING, reason="ContainerCreating"),
        "Succeeded": Status("main", ContainerState.TERMINATED, reason="Completed"),
        "Failed": Status("main", ContainerState.TERMINATED, reason="Error"),
    }
    return (states[phase],)


# ---------------------------------------------------------------- KubeShare's own objects


def share_pod(name="jupyter-0", *, gpuid="abcde", bound=True, served=True, **options):
    """A SharePod in the shape of a pod; served by the pod that :func:`real_pod` makes."""
    known = {SHARE_POD: f"real-{name}" if served else ""}
    if bound:
        known[BOUND_DEVICE] = uuid(options.get("node", "gpu-1"), 0)
    annotations = {GPUID: gpuid, **known, **options.pop("annotations", {})}
    options.setdefault("claim", Phase.ASSIGNED if served else Phase.ASSUMED)
    return pod(
        name, "kubeshare", annotations=annotations, kind=options.pop("kind", None), **options
    )


def real_pod(of, **fields):
    """The pod that KubeShare made for a SharePod."""
    known = (SHARE_POD, BOUND_DEVICE)
    annotations = {key: text for key, text in of.annotations.items() if key not in known}
    made = {
        "ref": PodRef(f"real-{of.ref.name}", of.ref.namespace, of.ref.name),
        "annotations": annotations,
        "owner": OwnerReference(OWNER, of.ref.name, of.ref.uid, "kubeshare.nthu/v1"),
        "containers": (Container("main"),),
    }
    return replace(of, **(made | fields))


def holder(node="gpu-1", gpuid="abcde", **fields):
    """The pod that keeps a GPU for a virtual GPU."""
    made = pod(
        holder_name(node, gpuid),
        "kubeshare",
        node=node,
        claim=None,
        phase="Running",
        namespace=HOLDER_NAMESPACE,
        kind=None,
    )
    asked = {
        "annotations": {},
        "labels": holder_labels(node, gpuid),
        "containers": (Container("main", {"nvidia.com/gpu": 1}),),
    }
    return replace(made, **(asked | fields))


def labelled(name="infer-0", node="gpu-1", **options):
    """A pod of KubeShare 2: requested by labels, with its GPU in annotations."""
    made = pod(name, "kubeshare", node=node, claim=None, **{"phase": "Running"} | options)
    return replace(
        made,
        labels={f"{LABELS}gpu_request": "0.2", f"{LABELS}gpu_limit": "1.0"},
        annotations={f"{LABELS}gpu_uuid": uuid(node, 0), f"{LABELS}gpu_mem": str(SHARE)},
    )


# ---------------------------------------------------------------- illnesses

ALLOCATE = "Pod was rejected: Allocate failed due to rpc error: code = Unknown, which is unexpected"
PRESTART = "PreStartContainer check failed: device not found"
NO_GPU = "no-gpu-has-8GiB-to-run"


def refused(sick, reason="UnexpectedAdmissionError", message=ALLOCATE):
    """The kubelet did not admit it: Failed, and without the status of any container."""
    return replace(sick, phase="Failed", reason=reason, message=message, statuses=())


def assumed(name="train-0", style="volcano", **options):
    """Promised a device and bound, never served."""
    return pod(name, style, claim=Phase.ASSUMED, **options)


def unbound(name="train-0", style="volcano", **options):
    """Promised a device, never bound: the promise names the node."""
    made = assumed(name, style, **options)
    return replace(made, node="", statuses=(), started_at=None)


def waiting(sick, reason, message=""):
    """Its container waits for this."""
    status = Status("main", ContainerState.WAITING, reason=reason, message=message)
    return replace(sick, phase="Pending", statuses=(status,), status_at=sick.created_at)


def prestart_failed(sick, message=PRESTART):
    """The plugin does not let its container start."""
    return waiting(sick, "CreateContainerConfigError", message)


def no_gpu_matched(sick, message=NO_GPU):
    """gpushare's plugin gave it a poisoned environment, on which the runtime stumbles."""
    return waiting(sick, "RunContainerError", f"unknown device: {message}: unknown")


def ended(sick, phase="Succeeded"):
    """It has run to its end."""
    return replace(sick, phase=phase, statuses=_statuses(phase))


def terminating(sick):
    """It is being deleted, and its containers still run."""
    return replace(sick, deleted_at=NOW + MINUTE)


# ---------------------------------------------------------------- snapshots

SEEN = {
    Scope.CLUSTER: frozenset({Coverage.PODS, Coverage.NODES, Coverage.SHARE_PODS}),
    Scope.NODE: frozenset(Coverage),
}
"""What a look sees in full when nothing goes wrong."""


def snapshot(*objects, scope=Scope.CLUSTER, now=NOW, **fields):
    """A look at these pods, SharePods and nodes, at which nothing went wrong."""
    nodes = tuple(each for each in objects if isinstance(each, Node))
    pods = tuple(each for each in objects if isinstance(each, Pod))
    if not nodes:
        names = {each.node for each in pods} | {"gpu-1"}
        nodes = tuple(node(name) for name in sorted(names - {""}))
    seen = {
        "complete": SEEN[scope],
        "nodes": nodes,
        "pods": tuple(each for each in pods if SHARE_POD not in each.annotations),
        "share_pods": tuple(each for each in pods if SHARE_POD in each.annotations),
    }
    return Snapshot(now=now, scope=scope, **(seen | fields))


def with_ledgers(seen):
    """The snapshot with the ledgers of its annotations."""
    objects = Objects(nodes=seen.nodes, pods=seen.pods, share_pods=seen.share_pods)
    views = inventory(objects, Units()).nodes
    return replace(seen, ledgers={view.node.name: view.ledger for view in views})


# ---------------------------------------------------------------- findings and plans


def object_ref(of, part=""):
    """A pod, SharePod or node as a plan's object."""
    if isinstance(of, Node):
        return ObjectRef(ObjectKind.NODE, "", of.name, of.uid, part, of.name)
    kind = ObjectKind.SHARE_POD if SHARE_POD in of.annotations else ObjectKind.POD
    return ObjectRef(kind, of.ref.namespace, of.ref.name, of.ref.uid, part, of.node)


def reporting(of, rule=Rule.DOUBLE_BOOKED, cause=Cause.OVERCOMMITTED, **fields):
    """A finding that can only be reported."""
    return Finding(rule, cause, object_ref(of), **({"evidence": ("as the tests say",)} | fields))


def evicting(of, rule=Rule.REFUSED, cause=Cause.UNEXPECTED_ADMISSION_ERROR, **fields):
    """A finding that an eviction would repair; it has been so for an hour."""
    action = Evict(of.ref, of.resource_version)
    return reporting(of, rule, cause, **({"action": action, "since": NOW - HOUR} | fields))


def editing(of, key="hami.io/mutex.lock", rule=Rule.STALE_LOCK, cause=Cause.OWNER_GONE, **fields):
    """A finding that removing an annotation would repair; it has been so for an hour."""
    part = key if isinstance(of, Node) else ""
    ref = object_ref(of, part)
    version = "" if isinstance(of, Node) else of.resource_version
    action = Edit(ref, version, {key: of.annotations.get(key)}, {key: None})
    fields = {"action": action, "since": NOW - HOUR, "effect": Effect.REPAIR} | fields
    return Finding(rule, cause, ref, ("as the tests say",), **fields)


def removing(folder, node="gpu-1", **fields):
    """A finding that removing a shim's folder would repair; it has been so for an hour."""
    ref = ObjectRef(ObjectKind.FOLDER, "", folder.path, folder.pod_uid, node=node)
    action = RemoveFolder(folder.path, folder.pod_uid, folder.identity)
    fields = {"action": action, "since": NOW - HOUR, "effect": Effect.TIDYING} | fields
    return Finding(Rule.ORPHAN_SHIM_DIR, Cause.POD_GONE, ref, ("as the tests say",), **fields)


def planned(seen, *findings, policy=None, memory=None):
    """The plan for these findings, by default with the memory of a first look."""
    cluster_index = ClusterIndex(seen, CODECS_IN_USE)
    return resolve(cluster_index, policy or Policy(), memory or ReconcilerState(), findings)
