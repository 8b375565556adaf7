"""The node of ``make demo``: two GPUs, all four schemes, and one of each thing that goes wrong.

Wrong from the first sample on: ``finetune`` uses more than its limit, ``notebook-bao`` has a
killed process whose memory is still booked, ``embeddings`` is blocked while ``chat`` works, a pod
was refused, a completed pod and a deleted one left their regions behind, and a process outside
any container sits on a GPU. After 20 s the A10 reports XID 31; from 60 to 90 s the region of
``notebook-anna`` is cut down to 12 bytes.
"""

from typing import Any

from simulator.scenario import (
    HAMI_ROOT,
    OLD_VOLCANO_ROOT,
    VOLCANO_ROOT,
    Damage,
    End,
    Process,
    Scenario,
    Shape,
    Shim,
    SimulatedContainer,
    SimulatedGpu,
    SimulatedPod,
    Waveform,
    Xid,
    constant,
    container_id,
    identity,
)
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Scheme
from vgpu.model.units import GIB, MIB, MILLI_PER_PERCENT

A10 = SimulatedGpu(
    uuid="GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05",
    index=0,
    name="NVIDIA A10",
    pci_bus_id="00000000:17:00.0",
    memory_bytes=23028 * MIB,
    reserved_bytes=512 * MIB,
    baseline_bytes=16 * MIB,
    idle_watts=20.0,
    limit_watts=150.0,
    sm_hertz=1.695e9,
    memory_hertz=6.251e9,
)
L40S = SimulatedGpu(
    uuid="GPU-b83f0d62-417e-4c9a-a5d8-e06b3f17c942",
    index=1,
    name="NVIDIA L40S",
    pci_bus_id="00000000:65:00.0",
    memory_bytes=46068 * MIB,
    reserved_bytes=664 * MIB,
    baseline_bytes=16 * MIB,
    idle_watts=34.0,
    limit_watts=350.0,
    sm_hertz=2.52e9,
    memory_hertz=9.001e9,
)


_BURST, _SAW = Shape.BURST, Shape.SAW


def make_pod(
    path: str,
    scheme: Scheme,
    shares: tuple[Share, ...],
    processes: tuple[Process, ...] = (),
    *,
    shim: Shim | None = None,
    cores_request_percent: int | None = None,
    **of_pod: Any,
) -> SimulatedPod:
    """A pod of one container.

    ``path`` is ``<namespace>/<pod>/<container>``, ``of_pod`` are fields of the pod.
    """
    namespace, name, container = path.split("/")
    return SimulatedPod(
        ref=PodRef(uid=identity(f"{namespace}/{name}"), namespace=namespace, name=name),
        containers=(
            SimulatedContainer(
                name=container,
                id=container_id(path),
                scheme=scheme,
                shares=shares,
                processes=processes,
                shim=shim,
                cores_request_percent=cores_request_percent,
            ),
        ),
        **of_pod,
    )


def make_share(gpu: SimulatedGpu, gib: int, cores: int | None = None) -> Share:
    """A share of a GPU: GiB, and percent of its cores."""
    return Share(
        device=gpu.uuid,
        memory_bytes=gib * GIB,
        cores_milli=None if cores is None else cores * MILLI_PER_PERCENT,
    )


def make_shim(layout: str, root: str, *, priority: int = 1, preemptible: bool = False) -> Shim:
    """The region of a container's preloaded library; its file is named after layout and root."""
    cache = identity(f"region {layout} in {root}")
    return Shim(layout=layout, root=root, cache=cache, priority=priority, preemptible=preemptible)


def _gib(low: float, high: float, period: float, shape: Shape = Shape.SINE) -> Waveform:
    return Waveform(low=low * GIB, high=high * GIB, period=period, shape=shape)


def _sm(
    low: float, high: float, period: float, shape: Shape = Shape.SINE, phase: float = 0
) -> Waveform:
    return Waveform(low=low, high=high, period=period, shape=shape, phase=phase)


# Works every other minute, at high priority.
_CHAT = make_pod(
    "serving/chat-7c9d8b6f5d-x2k4q/vllm",
    Scheme.VOLCANO,
    (make_share(L40S, 20, 35),),
    (
        Process(
            pid=1184201,
            gpu=1,
            context=420 * MIB,
            data=_gib(11, 14, 90),
            sm=_sm(0, 0.25, 120, _BURST),
        ),
        Process(
            pid=1184377,
            container_pid=64,
            gpu=1,
            data=_gib(2, 3.5, 45, _SAW),
            sm=_sm(0, 0.08, 120, _BURST),
        ),
    ),
    shim=make_shim("v1.2", HAMI_ROOT, priority=0),
    qos="guaranteed",
    owner="ReplicaSet/chat-7c9d8b6f5d",
)
# May run only in between.
_EMBEDDINGS = make_pod(
    "batch/embeddings-29361600-q9vxz/worker",
    Scheme.VOLCANO,
    (make_share(L40S, 8, 25),),
    (
        Process(
            pid=1190022,
            gpu=1,
            data=_gib(4.5, 6, 75),
            sm=_sm(0, 0.22, 120, _BURST, phase=60),
        ),
    ),
    shim=make_shim("v1.1", OLD_VOLCANO_ROOT, preemptible=True),
    owner="Job/embeddings-29361600",
)
_DETECTOR = make_pod(
    "vision/detector-5f6b7c8d94-h8mzt/detector",
    Scheme.VOLCANO,
    (make_share(A10, 5, 30),),
    (
        Process(
            pid=1171530,
            container_pid=7,
            gpu=0,
            data=_gib(1.5, 4, 60, _SAW),
            sm=_sm(0.05, 0.28, 40),
        ),
    ),
    shim=make_shim("v1.1c", HAMI_ROOT),
    owner="ReplicaSet/detector-5f6b7c8d94",
)
# NCCL's buffers come from an allocator that the shim does not see: over the limit on the A10.
_FINETUNE = make_pod(
    "research/finetune-0/trainer",
    Scheme.VOLCANO,
    (make_share(A10, 5, 40), make_share(L40S, 5, 40)),
    (
        Process(
            pid=1180907,
            container_pid=31,
            gpu=0,
            data=_gib(4.1, 4.5, 30),
            hidden=1792 * MIB,
            sm=_sm(0.2, 0.38, 25),
        ),
        Process(
            pid=1180908,
            container_pid=32,
            gpu=1,
            data=_gib(3.2, 3.6, 30),
            hidden=512 * MIB,
            sm=_sm(0.15, 0.3, 25, phase=5),
        ),
    ),
    shim=make_shim("v1.2", VOLCANO_ROOT),
    qos="guaranteed",
    owner="StatefulSet/finetune",
)
# Holds its share and does nothing with it.
_NOTEBOOK_ANNA = make_pod(
    "research/notebook-anna-0/jupyter",
    Scheme.VOLCANO,
    (make_share(A10, 3, 10),),
    (Process(pid=1155210),),
    shim=make_shim("v1.2", HAMI_ROOT),
    owner="StatefulSet/notebook-anna",
)
# Its kernel was killed for want of memory; nothing has tidied the region up since.
_NOTEBOOK_BAO = make_pod(
    "research/notebook-bao-0/jupyter",
    Scheme.VOLCANO,
    (make_share(A10, 3, 20),),
    (
        Process(pid=1155604),
        Process(
            pid=1158813,
            container_pid=97,
            gpu=0,
            data=constant(2 * GIB),
            sm=constant(0.1),
            since=-1800,
            until=-600,
            end=End.KILLED,
        ),
    ),
    shim=make_shim("v0", OLD_VOLCANO_ROOT),
    owner="StatefulSet/notebook-bao",
)
_WHISPER = make_pod(
    "speech/whisper-6d5c7f9b8-4wq7n/asr",
    Scheme.GPUSHARE,
    (make_share(A10, 4),),
    (Process(pid=1166041, gpu=0, data=_gib(2, 3, 50), sm=_sm(0, 0.2, 35, _SAW)),),
    owner="ReplicaSet/whisper-6d5c7f9b8",
)
_RANKER = make_pod(
    "recsys/ranker-84b5c6d7f-zk2lp/ranker",
    Scheme.GAIA,
    (make_share(L40S, 4, 20),),
    (
        Process(
            pid=1168455,
            container_pid=12,
            gpu=1,
            data=_gib(2.5, 3.5, 80),
            sm=_sm(0.04, 0.18, 55),
        ),
    ),
    owner="ReplicaSet/ranker-84b5c6d7f",
)
_LAB = make_pod(
    "teaching/lab-17/lab",
    Scheme.KUBESHARE,
    (make_share(L40S, 3, 20),),
    (Process(pid=1169713, gpu=1, data=_gib(1, 2.5, 65, _SAW), sm=_sm(0.02, 0.15, 45)),),
    cores_request_percent=10,
)
# The kubelet refused it for good; it holds nothing, and no controller removes it.
_REFUSED = make_pod(
    "batch/embeddings-29361540-7kd2p/worker",
    Scheme.VOLCANO,
    (make_share(L40S, 8, 25),),
    phase="Failed",
    reason="UnexpectedAdmissionError",
    message=(
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown"
        " desc = device number not matched, which is unexpected"
    ),
    owner="Job/embeddings-29361540",
    created=-540.0,
)
_COMPLETED = make_pod(
    "batch/dataprep-29361480-m4s8j/prepare",
    Scheme.VOLCANO,
    (make_share(A10, 3, 20),),
    (Process(pid=1102338, gpu=0, data=constant(GIB), sm=constant(0.2), since=-7200, until=-3600),),
    shim=make_shim("v1.1", OLD_VOLCANO_ROOT),
    phase="Succeeded",
    owner="Job/dataprep-29361480",
)
_DELETED = make_pod(
    "research/old-experiment-0/trainer",
    Scheme.VOLCANO,
    (make_share(A10, 8),),
    (
        Process(
            pid=904411,
            gpu=0,
            data=constant(6 * GIB),
            sm=constant(0.3),
            since=-172800,
            until=-86400,
            end=End.KILLED,
        ),
    ),
    shim=make_shim("p0", HAMI_ROOT),
    deleted=True,
)


def demo() -> Scenario:
    """The demo node."""
    anna = _NOTEBOOK_ANNA.containers[0]
    return Scenario(
        node="gpu-node-1",
        gpus=(A10, L40S),
        pods=(
            _CHAT,
            _EMBEDDINGS,
            _DETECTOR,
            _FINETUNE,
            _NOTEBOOK_ANNA,
            _NOTEBOOK_BAO,
            _WHISPER,
            _RANKER,
            _LAB,
            _REFUSED,
            _COMPLETED,
            _DELETED,
        ),
        host_processes=(Process(pid=2207, gpu=0, data=constant(640 * MIB), sm=_sm(0, 0.04, 20)),),
        xids=(Xid(gpu=0, xid=31, at=20),),
        damages=(Damage(container_id=anna.id, since=60, until=90),),
    )
