"""What is not free of a GPU beside what is held, in one sentence for every command. Pure."""

from vgpu.inventory import MaybeHeld, NodeView
from vgpu.ledger import DeviceEntry
from vgpu.model.folding import examples_text
from vgpu.model.names import PodRef
from vgpu.model.units import count, rounded_size
from vgpu.placement.node_view import StandingReason


def maybe_held_text(maybe_held: MaybeHeld) -> str:
    """What pods may hold of free memory, whose GPU is not known, as text behind that memory."""
    if not maybe_held.memory_bytes:
        return ""
    pods = count(len(maybe_held.pods), "pod")
    amount = rounded_size(maybe_held.memory_bytes)
    return f", up to {amount} of it held by {pods} on an unknown GPU"


def kept_text(view: NodeView, entry: DeviceEntry) -> str:
    """What is kept free of a GPU, and for which pods; "" if nothing is."""
    kept = view.kept_of(entry).memory_bytes
    if not kept:
        return ""
    standing = view.standing
    unknown = [each.pod for each in standing if each.reason is not StandingReason.RESERVED]
    return f"{rounded_size(kept)} kept free{_for(unknown or [each.pod for each in standing])}"


def _for(pods: list[PodRef]) -> str:
    if not pods:
        return ""
    names = [f"{pod.namespace}/{pod.name or pod.uid}" for pod in pods]
    return f" for {'pod' if len(names) == 1 else 'pods'} {examples_text(names)}"
