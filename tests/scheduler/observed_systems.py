"""Generated nodes of the systems for whose pods another scheduler decides, and pods of such nodes.

KubeShare has SharePods, virtual GPUs and their holder pods, and pods with labels; NVIDIA's own
plugin has units, replicas and MIG instances; drivers of dynamic allocation have ResourceSlices and
ResourceClaims, which may also supply ``nvidia.com/gpu``.
"""

import msgspec
from hypothesis import strategies as st

from tests.scheduler.test_promise import UUIDS
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import (
    BOUND_DEVICE,
    SHARE_POD,
    Container,
    ContainerState,
    Node,
    OwnerReference,
    Pod,
    Status,
    UsedClaim,
)
from vgpu.model.resource_claims import (
    AllocatedDevice,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.labels import GPU_UUID
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_NAMESPACE, HOLDER_UUID, holder_labels
from vgpu.schemes.kubeshare.node import holder_name as name_of_holder

SYSTEMS = ("dra", "kubeshare", "nvidia")

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
UNITS = ({GPU: 2}, {SHARED: 8}, {MIG: 4}, {GPU: 1, MIG: 4})
"""What a node of NVIDIA's own plugin advertises."""

DRIVER = "gpu.nvidia.com"
VIRTUAL_GPUS = {"abcde": UUIDS[0], "vwxyz": UUIDS[1]}


class Observed(msgspec.Struct):
    """What a system adds to a node, and the objects that belong to it."""

    annotations: dict[str, str] = {}
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    claiming: tuple[Pod, ...] = ()

    def on(self, node: Node) -> Node:
        """The node with what the system adds; a resource that it has stays."""
        return msgspec.structs.replace(
            node,
            annotations={**self.annotations, **node.annotations},
            capacity={**self.capacity, **node.capacity},
            allocatable={**self.allocatable, **(node.allocatable or node.capacity)}
            if self.capacity
            else node.allocatable,
        )


def _phased(draw, ref, **fields):
    """A bound pod in some phase."""
    phase = draw(st.sampled_from(("Running", "Running", "Pending", "Succeeded")))
    containers = fields.pop("containers", (Container("main"),))
    running = phase == "Running"
    statuses = tuple(
        Status(each.name, ContainerState.RUNNING, started_at=1.0)
        for each in containers
        if running and each.kind is not ContainerKind.INIT
    )
    return Pod(ref, phase=phase, containers=containers, statuses=statuses, **fields)


# ---------------------------------------------------------------- KubeShare


@st.composite
def _kubeshare(draw, name, now):
    pods, share_pods = [], []
    for number in range(draw(st.integers(0, 2))):
        pods_of, shares_of = _share_pod(draw, name, number, now)
        pods += pods_of
        share_pods += shares_of
    for gpuid in draw(st.lists(st.sampled_from(sorted(VIRTUAL_GPUS)), max_size=2, unique=True)):
        is_known = draw(st.booleans())
        pods.append(
            _phased(
                draw,
                PodRef(f"uid-{name}-{gpuid}", HOLDER_NAMESPACE, name_of_holder(name, gpuid)),
                node=name,
                labels=holder_labels(name, gpuid),
                annotations={HOLDER_UUID: VIRTUAL_GPUS[gpuid]} if is_known else {},
                containers=(Container("main", {GPU: 1}),),
                created_at=now - 1000,
                scheduled_at=now - 1000,
            )
        )
    info = "".join(f"{uuid}:16384," for uuid in UUIDS)
    units = {GPU: 2}
    gone = draw(st.integers(0, 5)) == 5
    return Observed(
        {GPU_INFO: draw(st.sampled_from((info, info, info, "x")))},
        units,
        {GPU: 0} if gone else units,
        tuple(pods),
        tuple(share_pods),
    )


def _share_pod(draw, name, number, now):
    """A SharePod, its pod, or both; or a pod with labels, as KubeShare 2 has them."""
    part, gib = draw(st.sampled_from((0.25, 0.5, 1.0))), draw(st.integers(0, 8))
    sizes = {"gpu_request": str(part), "gpu_limit": "1.0", "gpu_mem": str(gib * GIB)}
    ref = PodRef(f"uid-shared-{name}-{number}", "ns", f"shared-{name}-{number}")
    gpuid = draw(st.sampled_from(sorted(VIRTUAL_GPUS)))
    ages = {"created_at": now - 1000, "scheduled_at": now - 1000}
    if draw(st.integers(0, 3)) == 3:
        labels = {f"sharedgpu/{key}": text for key, text in sizes.items()}
        chosen = {GPU_UUID: VIRTUAL_GPUS[gpuid]} if draw(st.integers(0, 3)) else {}
        return [_phased(draw, ref, node=name, labels=labels, annotations=chosen, **ages)], []
    keys = {f"kubeshare/{key}": text for key, text in sizes.items()}
    state = draw(st.sampled_from(("bound", "bound", "placed", "waits", "orphan")))
    if state == "waits":
        return [], [Pod(ref, annotations={**keys, SHARE_POD: ""}, phase="", created_at=now - 1000)]
    keys["kubeshare/GPUID"] = gpuid
    share = _share(ref, name, keys, now)
    if state == "placed":
        return [], [share]
    owner = OwnerReference("SharePod", ref.name, f"share-{ref.uid}")
    real = _phased(draw, ref, node=name, annotations=keys, owner=owner, **ages)
    if state == "orphan":
        return [real], []
    derived = {SHARE_POD: ref.uid, BOUND_DEVICE: VIRTUAL_GPUS[gpuid]}
    bound = msgspec.structs.replace(
        share,
        annotations={**keys, **derived},
        phase=real.phase,
        statuses=real.statuses,
    )
    return [real], [bound]


def _share(ref, node, keys, now):
    """A SharePod that has a virtual GPU, and no pod yet."""
    share_ref = PodRef(f"share-{ref.uid}", ref.namespace, ref.name)
    annotations = {**keys, SHARE_POD: ""}
    return Pod(share_ref, node=node, annotations=annotations, phase="", created_at=now - 1000)


# ---------------------------------------------------------------- NVIDIA's own plugin


@st.composite
def _nvidia(draw, name, now):
    units = draw(st.sampled_from(UNITS))
    share = draw(st.sampled_from((1.0, 1.0, 0.5, 0.0)))
    pods = tuple(
        _phased(
            draw,
            PodRef(f"uid-whole-{name}-{number}", "ns", f"whole-{name}-{number}"),
            node=name,
            containers=(
                Container("main", {draw(st.sampled_from(sorted(units))): draw(st.integers(1, 2))}),
            ),
            created_at=now - 1000,
            scheduled_at=now - 1000,
        )
        for number in range(draw(st.integers(0, 2)))
    )
    allocatable = {resource: int(number * share) for resource, number in units.items()}
    return Observed({}, dict(units), allocatable, pods)


# ---------------------------------------------------------------- dynamic allocation


@st.composite
def _dra(draw, name, now):
    devices = tuple(
        PublishedDevice(f"gpu-{number}", uuid, draw(st.sampled_from((16 * GIB, None))))
        for number, uuid in enumerate(UUIDS)
    )
    slices = (ResourceSlice(f"slice-{name}", DRIVER, name, 1, 1, name, devices),)
    claims, claiming = [], []
    for number in range(draw(st.integers(0, 2))):
        claim_name = f"claim-{name}-{number}"
        ref = PodRef(f"uid-claims-{name}-{number}", "ns", f"claims-{name}-{number}")
        is_allocated = draw(st.integers(0, 3)) > 0
        used = draw(st.sampled_from((claim_name, claim_name, claim_name, "")))
        fields = {"uses_resource_claims": True, "created_at": now - 1000}
        fields["used_claims"] = (UsedClaim("gpu", used, "template"),)
        if is_allocated and used:
            claiming.append(_phased(draw, ref, node=name, scheduled_at=now - 1000, **fields))
        else:
            text = "0/1 nodes are available: 1 cannot allocate all claims."
            claiming.append(Pod(ref, phase="Pending", unschedulable=text, **fields))
        share = draw(st.sampled_from((None, 4 * GIB)))
        result = AllocatedDevice(
            "gpu",
            DRIVER,
            name,
            draw(st.sampled_from(("gpu-0", "gpu-1"))),
            "" if share is None else f"share-{number}",
            share,
            1000 if share is None else None,
            admin=draw(st.integers(0, 7)) == 7,
        )
        results = (result,) if is_allocated and used else ()
        users = (ref,) if results else ()
        if used:
            claims.append(
                ResourceClaim(f"uid-{claim_name}", "ns", claim_name, results, users, node=name)
            )
    return Observed({}, slices=slices, claims=tuple(claims), claiming=tuple(claiming))


_OF = {"dra": _dra, "kubeshare": _kubeshare, "nvidia": _nvidia}


def observed(system, name, now):
    """What a node of the system has."""
    return _OF[system](name, now)


WAITING = ({GPU: 1}, {GPU: 2}, {SHARED: 1}, {MIG: 1})
"""What a pod requests that waits for NVIDIA's own plugin."""
