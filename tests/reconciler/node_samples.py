"""Statements of a node's own sources about the sample pods, and snapshots from that node.

    on_node(train, statements=[statement(train, gpu=1)])

is a snapshot of a pod whose annotations name GPU 0, while the kubelet allocated GPU 1.
"""

from reconciler.model import Scope
from tests.reconciler.samples import CODECS_IN_USE, SHARE, gpus, replace, snapshot, uuid
from vgpu.ledger import Evidence, Statement, merge
from vgpu.ledger.from_api import node_ref, read_pod
from vgpu.ledger.virtual_gpus import of_share_pods, on_gpus
from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Source
from vgpu.model.objects import holds_devices
from vgpu.schemes.kubeshare.sharepod import join

SCHEMES = {
    "volcano": Scheme.VOLCANO,
    "hami": Scheme.VOLCANO,
    "gpushare": Scheme.GPUSHARE,
    "gaia": Scheme.GAIA,
    "kubeshare": Scheme.KUBESHARE,
}


def statement(
    to, style="volcano", *, gpu=0, source=Source.CHECKPOINT, memory=SHARE, cores=None, **changes
):
    """A source's statement: container main of a pod has a share of a GPU (None: unnamed)."""
    device = "" if gpu is None else uuid("gpu-1", gpu)
    process = source is Source.PROCESS
    made = Statement(
        source=source,
        pod=node_ref(to),
        container="main",
        shares=(Share(device) if process else Share(device, memory, cores),),
        scheme=Scheme.NONE if process else SCHEMES[style],
        alive=process,
        where=f"{source} of {to.ref.uid}",
    )
    return replace(made, **changes)


def ledger(pods, statements=(), devices=None, **known):
    """The ledger of node gpu-1: the annotations' statements, and further ones."""
    uuids = of_share_pods(pods)
    readings = [(pod, read_pod(pod, CODECS_IN_USE)) for pod in pods]
    annotated = [
        one for pod, reading in readings for one in on_gpus(pod, reading.statements, uuids)
    ]
    evidence = {
        "node": "gpu-1",
        "devices": gpus("gpu-1") if devices is None else devices,
        "statements": (*annotated, *statements),
        "pods": tuple(pods),
        "pods_complete": True,
        "live_pods": frozenset(pod.kubelet_uid for pod in pods if holds_devices(pod)),
        "wanted": tuple(wanted for _, reading in readings for wanted in reading.wanted),
        "read": frozenset(Source),
    }
    return merge(Evidence(**(evidence | known)))


def on_node(*objects, statements=(), devices=None, known=None, **fields):
    """A look from node gpu-1, whose sources say this beside the annotations."""
    seen = snapshot(*objects, scope=Scope.NODE, **fields)
    pods = join(seen.pods, seen.share_pods)
    return replace(seen, ledgers={"gpu-1": ledger(pods, statements, devices, **(known or {}))})
