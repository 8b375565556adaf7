"""The device IDs and node labels of GKE's own plugin for NVIDIA's GPUs. Pure.

GoogleCloudPlatform/container-engine-accelerators, 992db812. It registers ``nvidia.com/gpu`` alone:

- ``nvidia<minor>`` for a GPU: the number is that of ``/dev/nvidia<minor>``, never NVML's index
  (``pkg/gpu/nvidia/manager.go``, ``discoverGPUs``);
- ``nvidia<minor>/gi<id>`` for a MIG instance, by the ID of its GPU instance, of which it takes
  compute instance 0 (``pkg/gpu/nvidia/mig/mig.go``);
- ``/vgpu<k>`` behind one of these for a replica (``manager.go``, ``ListDevices``), with the
  strategy ``time-sharing`` or ``mps``.

Its answer has device nodes and mounts, and no ``NVIDIA_VISIBLE_DEVICES``. With MPS it has the
container's limits in ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` and
``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``: units · total ÷ clients of a GPU, and units · 100 ÷ clients
(``manager.go``, ``Envs``).

GKE labels the nodes by their node pool (Google's pages "About GPU sharing solutions in GKE" and
"Run multi-instance GPUs"). The labels are the configuration of all GPUs of the node.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.names import DEVICE_NODE, Sharing, device_node
from vgpu.model.objects import Node
from vgpu.schemes.nvidia.resources import GPU
from vgpu.schemes.text import number

ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
"""The label with the model of the node's GPUs, such as ``nvidia-tesla-t4``."""

STRATEGY: Final = "cloud.google.com/gke-gpu-sharing-strategy"
"""The label with the way in which containers share a GPU."""

CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
"""The label with the number of replicas of each GPU or MIG instance."""

PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""The label with the profile of all MIG instances of the node, such as ``1g.5gb``."""

LABELS: Final = (ACCELERATOR, STRATEGY, CLIENTS, PARTITION)

TIME_SHARING: Final = "time-sharing"
"""The strategy without limits."""

_MOST_CLIENTS: Final = 10_000
_SEVERAL: Final = 2

_BEGINNING: Final = re.compile(r"nvidia[0-9]")
_ID: Final = re.compile(
    r"nvidia(?P<minor>0|[1-9][0-9]{0,3})"
    r"(?:/gi(?P<instance>0|[1-9][0-9]{0,3}))?"
    r"(?:/vgpu(?P<replica>0|[1-9][0-9]{0,5}))?"
)
_INSTANCE: Final = "/gi"


def parse_device_id(text: str) -> tuple[str, int | None] | None:
    """The device that an ID names, and the replica's number; None for any other form of ID."""
    matched = _ID.fullmatch(text)
    if matched is None:
        return None
    minor, instance, replica = matched["minor"], matched["instance"], matched["replica"]
    device = device_node(int(minor))
    if instance is not None:
        device = instance_name(device, instance)
    return device, None if replica is None else int(replica)


def begins_as_ours(text: str) -> bool:
    """Whether a text begins as the plugin's IDs do, whatever follows."""
    return _BEGINNING.match(text) is not None


def instance_name(node: str, gpu_instance: str, compute_instance: str = "0") -> str:
    """The name of a MIG instance by its GPU's device node; the plugin takes compute instance 0."""
    name = f"{node}{_INSTANCE}{gpu_instance}"
    return name if compute_instance == "0" else f"{name}/ci{compute_instance}"


def is_instance(device: str) -> bool:
    """Whether a device's name is one of :func:`instance_name`."""
    return device.startswith(DEVICE_NODE) and _INSTANCE in device


class NodeLabels(msgspec.Struct, frozen=True):
    """What GKE's labels of a node report; None and "" are what no label has.

    Attributes:
        sharing: how the devices are shared.
        model: the model of the GPUs.
        profile: the profile of the MIG instances.
        clients: number of replicas of each device.
    """

    sharing: Sharing
    model: str
    profile: str = ""
    clients: int | None = None


def node_labels(labels: Mapping[str, str]) -> NodeLabels | None:
    """GKE's labels; None of a node that has none of them, or no GPU."""
    model = labels.get(ACCELERATOR, "")
    profile, strategy = labels.get(PARTITION, ""), labels.get(STRATEGY, "")
    if not (model or profile or strategy):
        return None
    clients = number(labels.get(CLIENTS, ""), _MOST_CLIENTS) or None
    return NodeLabels(_sharing(strategy, is_instance=bool(profile)), model, profile, clients)


def _sharing(strategy: str, *, is_instance: bool) -> Sharing:
    if not strategy:
        return Sharing.MIG if is_instance else Sharing.EXCLUSIVE
    if strategy == TIME_SHARING:
        return Sharing.MIG_TIME_SLICING if is_instance else Sharing.TIME_SLICING
    return Sharing.MPS if strategy == "mps" else Sharing.UNKNOWN


def refusal(node: Node, units: int) -> str:
    """Why the plugin refuses a container with so many units on the node; "" if it does not.

    With time-sharing a container gets one unit, with MPS several only where the node has one GPU,
    or one MIG instance (``gpusharing/gpusharing.go``, ``ValidateRequest``).
    """
    labels = node_labels(node.labels)
    if labels is None or units < _SEVERAL:
        return ""
    strategy = node.labels.get(STRATEGY, "")
    if strategy == TIME_SHARING:
        return f"{units} units with time-sharing"
    capacity = node.capacity.get(GPU, 0)
    if labels.sharing is Sharing.MPS and labels.clients and capacity > labels.clients:
        return f"{units} units with MPS of several GPUs"
    return ""
