"""Pages of KubeShare's controllers and of a node component, over made-up clusters."""

from kubeshare.metrics import ControllerView, NodeComponentView, StepOutcome
from kubeshare.model import (
    POD_RUNNING,
    ClusterNode,
    ClusterPod,
    ConditionType,
    GpuRequest,
    SharePod,
    SharePodCondition,
    VirtualGpuName,
)
from kubeshare.reasons import UnplacedReason
from kubeshare.virtual_gpu import VirtualGpuState
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.units import GIB

JOB = "vgpu-kubeshare-controller"
NODE_JOB = "vgpu-kubeshare-node"

UUID, OTHER = "GPU-held", "GPU-other"
READY = SharePodCondition(ConditionType.READY, "True")


def share_pod(number: int, gpu: VirtualGpuName | None = None, bound: str = "") -> SharePod:
    """A SharePod that waits, is placed on a virtual GPU, or is bound and ready."""
    ref = PodRef("research", f"train-{number}", f"uid-{number}")
    pod = Pod(ref, node=gpu.node if gpu else "", phase=POD_RUNNING if bound else "")
    return SharePod(
        pod,
        bound,
        50051 + number if bound else 0,
        request=GpuRequest(250, 1000, GIB),
        conditions=(READY,) if bound else (),
        gpuid=gpu.gpuid if gpu else "",
    )


def holder(name: VirtualGpuName, uuid: str) -> ClusterPod:
    """A holder pod that runs; "" is one whose GPU is not reported."""
    ref = PodRef("kube-system", f"kubeshare-vgpu-{name.node}-{name.gpuid}", name.gpuid)
    return ClusterPod(Pod(ref, node=name.node, phase=POD_RUNNING), uuid=uuid)


def view_of(*gpus: VirtualGpuState, waiting: int, leads: bool, **fields: object) -> ControllerView:
    """A controller that knows these virtual GPUs, their SharePods, and some that wait."""
    placed = [tenant for gpu in gpus for tenant in gpu.tenants]
    return ControllerView(
        **{
            "leads": leads,
            "ready": leads,
            "ages": dict.fromkeys(("nodes", "pods", "sharepods"), 4.0),
            "malformed": {},
            "share_pods": (*placed, *(share_pod(100 + number) for number in range(waiting))),
            "gpus": gpus,
            "nodes": (ClusterNode("node-0", gpu_bytes={UUID: 16 * GIB}),),
            "unplaced": {UnplacedReason.NO_FITTING_GPU: waiting},
            "placements": (40, 2.0),
            "holder_starts": (12, 30.0),
            "steps": {},
            "api_requests": {},
            **fields,
        }
    )


def working(t: float) -> ControllerView:
    """A leader: one virtual GPU is used, another one is kept idle."""
    used, idle = VirtualGpuName("node-0", "abcde"), VirtualGpuName("node-0", "vwxyz")
    tenants = tuple(share_pod(number, used, UUID) for number in range(3))
    count = 40 + int(t / 2)
    return view_of(
        VirtualGpuState(used, holder(used, UUID), tenants),
        VirtualGpuState(idle, holder(idle, OTHER)),
        waiting=2,
        leads=True,
        placements=(count, count * 0.05),
        holder_starts=(count // 4, count * 0.6),
        steps={("PatchSharePod", StepOutcome.SUCCESS): count * 4},
        api_requests={("patch", "200"): count * 4, ("create", "201"): count},
    )


def broken(t: float) -> ControllerView:
    """No leader; pods use a GPU that nobody holds, and holder pods have none."""
    torn, pending = VirtualGpuName("node-0", "abcde"), VirtualGpuName("node-1", "vwxyz")
    count = int(t) + 5
    return view_of(
        VirtualGpuState(torn, holder(torn, OTHER), (share_pod(0, torn, UUID),)),
        VirtualGpuState(pending, holder(pending, ""), (share_pod(1, pending),)),
        waiting=5,
        leads=False,
        steps={("CreateHolder", StepOutcome.ERROR): count},
        api_requests={("create", "403"): count},
    )


def silent_node(t: float) -> NodeComponentView:
    """A node component whose requests fail."""
    return NodeComponentView(False, {}, {("list", "0"): int(t) + 5})
