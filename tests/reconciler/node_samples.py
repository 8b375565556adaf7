"""What a node's own sources say of the sample pods, and looks from that node.

    on_node(train, said=[given(train, card=1)])

is a look at a pod whose annotations name GPU 0, while the kubelet has given it GPU 1.
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


def given(
    to, style="volcano", *, gpu=0, source=Source.CHECKPOINT, memory=SHARE, cores=None, **changes
):
    """A source says that container main of a pod has a share of a GPU; not of which, if None."""
    device = "" if gpu is None else uuid("gpu-1", gpu)
    process = source is Source.PROCESS
    said = Statement(
        source=source,
        pod=node_ref(to),
        container="main",
        shares=(Share(device) if process else Share(device, memory, cores),),
        scheme=Scheme.NONE if process else SCHEMES[style],
        alive=process,
        where=f"{source} of {to.ref.uid}",
    )
    return replace(said, **changes)


def ledger(pods, said=(), devices=None, **known):
    """The ledger of node gpu-1: what the annotations say, and what is said beside."""
    uuids = of_share_pods(pods)
    readings = [(pod, read_pod(pod, CODECS_IN_USE)) for pod in pods]
    annotated = [
        one for pod, reading in readings for one in on_gpus(pod, reading.statements, uuids)
    ]
    evidence = {
        "node": "gpu-1",
        "devices": gpus("gpu-1") if devices is None else devices,
        "statements": (*annotated, *said),
        "pods": tuple(pods),
        "pods_complete": True,
        "live_pods": frozenset(pod.kubelet_uid for pod in pods if holds_devices(pod)),
        "wanted": tuple(wanted for _, reading in readings for wanted in reading.wanted),
        "read": frozenset(Source),
    }
    return merge(Evidence(**(evidence | known)))


def on_node(*objects, said=(), devices=None, known=None, **fields):
    """A look from node gpu-1, whose sources say this beside the annotations."""
    seen = snapshot(*objects, scope=Scope.NODE, **fields)
    pods = join(seen.pods, seen.share_pods)
    return replace(seen, ledgers={"gpu-1": ledger(pods, said, devices, **(known or {}))})
