"""The node of ``make demo``: two cards, all four schemes, and one of each thing that goes wrong.

Wrong from the first sample on: ``finetune`` uses more than its limit, ``notebook-bao`` has a
killed process whose memory is still booked, ``embeddings`` is blocked while ``chat`` works, a pod
was refused, a completed pod and a deleted one left their regions behind, and a process outside
any container sits on a card. After 20 s the A10 reports XID 31; from 60 to 90 s the region of
``notebook-anna`` is cut down to 12 bytes.
"""

from vgpu.model import PodRef, Scheme, Share
from vgpu.simulator.scenario import (
    HAMI_ROOT,
    OLD_VOLCANO_ROOT,
    VOLCANO_ROOT,
    Card,
    Container,
    Damage,
    End,
    Pod,
    Process,
    Scenario,
    Shim,
    Xid,
    container_id,
    identity,
)
from vgpu.simulator.wave import Shape, Wave, constant
from vgpu.units import GIB, MIB, MILLI_PER_PERCENT

A10 = Card(
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
L40S = Card(
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


def _pod(
    path: str,
    scheme: Scheme,
    shares: tuple[Share, ...],
    processes: tuple[Process, ...] = (),
    *,
    shim: Shim | None = None,
    cores_request_percent: int | None = None,
    qos: str = "burstable",
    phase: str = "Running",
    reason: str = "",
    message: str = "",
    deleted: bool = False,
) -> Pod:
    """A pod of one container; ``path`` is ``<namespace>/<pod>/<container>``."""
    namespace, name, container = path.split("/")
    return Pod(
        ref=PodRef(uid=identity(f"{namespace}/{name}"), namespace=namespace, name=name),
        containers=(
            Container(
                name=container,
                id=container_id(path),
                scheme=scheme,
                shares=shares,
                processes=processes,
                shim=shim,
                cores_request_percent=cores_request_percent,
            ),
        ),
        qos=qos,
        phase=phase,
        reason=reason,
        message=message,
        deleted=deleted,
    )


def _share(card: Card, gib: int, cores: int | None = None) -> Share:
    return Share(
        device=card.uuid,
        memory_bytes=gib * GIB,
        cores_milli=None if cores is None else cores * MILLI_PER_PERCENT,
    )


def _shim(layout: str, root: str, *, priority: int = 1, preemptible: bool = False) -> Shim:
    cache = identity(f"region {layout} in {root}")
    return Shim(layout=layout, root=root, cache=cache, priority=priority, preemptible=preemptible)


def _gib(low: float, high: float, period: float, shape: Shape = Shape.SINE) -> Wave:
    return Wave(low=low * GIB, high=high * GIB, period=period, shape=shape)


def _sm(
    low: float, high: float, period: float, shape: Shape = Shape.SINE, phase: float = 0
) -> Wave:
    return Wave(low=low, high=high, period=period, shape=shape, phase=phase)


# Works every other minute, at high priority.
_CHAT = _pod(
    "serving/chat-7c9d8b6f5d-x2k4q/vllm",
    Scheme.VOLCANO,
    (_share(L40S, 20, 35),),
    (
        Process(
            pid=1184201,
            card=1,
            context=420 * MIB,
            data=_gib(11, 14, 90),
            sm=_sm(0, 0.25, 120, _BURST),
        ),
        Process(
            pid=1184377,
            container_pid=64,
            card=1,
            data=_gib(2, 3.5, 45, _SAW),
            sm=_sm(0, 0.08, 120, _BURST),
        ),
    ),
    shim=_shim("v1.2", HAMI_ROOT, priority=0),
    qos="guaranteed",
)
# May run only in between.
_EMBEDDINGS = _pod(
    "batch/embeddings-29361600-q9vxz/worker",
    Scheme.VOLCANO,
    (_share(L40S, 8, 25),),
    (
        Process(
            pid=1190022,
            card=1,
            data=_gib(4.5, 6, 75),
            sm=_sm(0, 0.22, 120, _BURST, phase=60),
        ),
    ),
    shim=_shim("v1.1", OLD_VOLCANO_ROOT, preemptible=True),
)
_DETECTOR = _pod(
    "vision/detector-5f6b7c8d94-h8mzt/detector",
    Scheme.VOLCANO,
    (_share(A10, 5, 30),),
    (
        Process(
            pid=1171530,
            container_pid=7,
            card=0,
            data=_gib(1.5, 4, 60, _SAW),
            sm=_sm(0.05, 0.28, 40),
        ),
    ),
    shim=_shim("v1.1c", HAMI_ROOT),
)
# NCCL's buffers come from an allocator that the shim does not see: over the limit on the A10.
_FINETUNE = _pod(
    "research/finetune-0/trainer",
    Scheme.VOLCANO,
    (_share(A10, 5, 40), _share(L40S, 5, 40)),
    (
        Process(
            pid=1180907,
            container_pid=31,
            card=0,
            data=_gib(4.1, 4.5, 30),
            hidden=1792 * MIB,
            sm=_sm(0.2, 0.38, 25),
        ),
        Process(
            pid=1180908,
            container_pid=32,
            card=1,
            data=_gib(3.2, 3.6, 30),
            hidden=512 * MIB,
            sm=_sm(0.15, 0.3, 25, phase=5),
        ),
    ),
    shim=_shim("v1.2", VOLCANO_ROOT),
    qos="guaranteed",
)
# Holds its share and does nothing with it.
_NOTEBOOK_ANNA = _pod(
    "research/notebook-anna-0/jupyter",
    Scheme.VOLCANO,
    (_share(A10, 3, 10),),
    (Process(pid=1155210),),
    shim=_shim("v1.2", HAMI_ROOT),
)
# Its kernel was killed for want of memory; nothing has tidied the region up since.
_NOTEBOOK_BAO = _pod(
    "research/notebook-bao-0/jupyter",
    Scheme.VOLCANO,
    (_share(A10, 3, 20),),
    (
        Process(pid=1155604),
        Process(
            pid=1158813,
            container_pid=97,
            card=0,
            data=constant(2 * GIB),
            sm=constant(0.1),
            since=-1800,
            until=-600,
            end=End.KILLED,
        ),
    ),
    shim=_shim("v0", OLD_VOLCANO_ROOT),
)
_WHISPER = _pod(
    "speech/whisper-6d5c7f9b8-4wq7n/asr",
    Scheme.GPUSHARE,
    (_share(A10, 4),),
    (Process(pid=1166041, card=0, data=_gib(2, 3, 50), sm=_sm(0, 0.2, 35, _SAW)),),
)
_RANKER = _pod(
    "recsys/ranker-84b5c6d7f-zk2lp/ranker",
    Scheme.GAIA,
    (_share(L40S, 4, 20),),
    (
        Process(
            pid=1168455,
            container_pid=12,
            card=1,
            data=_gib(2.5, 3.5, 80),
            sm=_sm(0.04, 0.18, 55),
        ),
    ),
)
_LAB = _pod(
    "teaching/lab-17/lab",
    Scheme.KUBESHARE,
    (_share(L40S, 3, 20),),
    (Process(pid=1169713, card=1, data=_gib(1, 2.5, 65, _SAW), sm=_sm(0.02, 0.15, 45)),),
    cores_request_percent=10,
)
# The kubelet refused it for good; it holds nothing, and nobody takes it away.
_REFUSED = _pod(
    "batch/embeddings-29361540-7kd2p/worker",
    Scheme.VOLCANO,
    (_share(L40S, 8, 25),),
    phase="Failed",
    reason="UnexpectedAdmissionError",
    message=(
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown"
        " desc = device number not matched, which is unexpected"
    ),
)
_COMPLETED = _pod(
    "batch/dataprep-29361480-m4s8j/prepare",
    Scheme.VOLCANO,
    (_share(A10, 3, 20),),
    (Process(pid=1102338, card=0, data=constant(GIB), sm=constant(0.2), since=-7200, until=-3600),),
    shim=_shim("v1.1", OLD_VOLCANO_ROOT),
    phase="Succeeded",
)
_DELETED = _pod(
    "research/old-experiment-0/trainer",
    Scheme.VOLCANO,
    (_share(A10, 8),),
    (
        Process(
            pid=904411,
            card=0,
            data=constant(6 * GIB),
            sm=constant(0.3),
            since=-172800,
            until=-86400,
            end=End.KILLED,
        ),
    ),
    shim=_shim("p0", HAMI_ROOT),
    deleted=True,
)


def demo() -> Scenario:
    """The demo node."""
    anna = _NOTEBOOK_ANNA.containers[0]
    return Scenario(
        node="gpu-node-1",
        cards=(A10, L40S),
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
        host_processes=(Process(pid=2207, card=0, data=constant(640 * MIB), sm=_sm(0, 0.04, 20)),),
        xids=(Xid(card=0, xid=31, at=20),),
        damages=(Damage(container_id=anna.id, since=60, until=90),),
    )
