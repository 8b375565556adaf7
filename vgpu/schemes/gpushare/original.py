"""Pods that gpushare's original device plugin can never serve. Pure.

The kubelet calls Allocate for each container by itself. The original (gpushare-device-plugin,
``pkg/gpu/nvidia/allocate.go``) looks for a waiting pod whose app containers together request the
units of the call: a pod of which two containers request memory matches none of its calls. An init
container is in no sum; if its request equals that of the app container, it takes the pod's only
answer. Each call that matches nothing is answered with ``no-gpu-has-…-to-run``. On a node with one
GPU the original allocates this GPU without looking for a pod.
"""

from vgpu.model.names import ContainerKind
from vgpu.model.objects import Node, Pod
from vgpu.model.units import count
from vgpu.schemes.gpushare.node import GPUS, MEMORY


def never_serves(pod: Pod, node: Node) -> str:
    """Why the original plugin can never serve the pod on the node; "" if it may."""
    requesting = [each for each in pod.containers if each.limits.get(MEMORY)]
    kinds = [each.kind for each in requesting]
    if not requesting or kinds == [ContainerKind.APP] or node.capacity.get(GPUS) == 1:
        return ""
    names = ", ".join(each.name for each in requesting)
    return (
        f"{count(len(requesting), 'container')} ({names}) request {MEMORY}, and the original"
        " gpushare plugin serves one app container of a pod"
    )
