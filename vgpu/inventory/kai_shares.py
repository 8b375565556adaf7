"""The GPUs and pods of KAI Scheduler by the ledgers, and what is not known of its groups. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from vgpu.inventory.nvidia import on_unknown_gpus
from vgpu.ledger import Holding, Ledger
from vgpu.ledger.liveness import node_uid
from vgpu.model.folding import examples_text
from vgpu.model.objects import Pod, holds_devices
from vgpu.schemes.kai.groups import groups_of, is_reservation, reserved_gpu
from vgpu.schemes.kai.keys import KAI


def held_by_kai(ledgers: Iterable[Ledger]) -> frozenset[str]:
    """UIDs on the node of the pods whose shares of KAI's the ledgers have."""
    return frozenset(
        holding.pod.uid
        for ledger in ledgers
        for holding in ledger.holdings
        if holding.scheme is KAI
    )


def gpus_of_kai(ledger: Ledger, pods: Iterable[Pod]) -> Mapping[str, str]:
    """KAI for each GPU of the node that KAI shares, by the name of the GPU.

    They are those of reservation pods among the ``pods`` of the node, and those of which KAI's pods
    alone have shares: a ConfigMap may show the GPU of a group without a reservation pod.
    """
    reserved = {reserved_gpu(pod) for pod in pods if is_reservation(pod)} - {""}
    held = (
        entry.device.name
        for entry in ledger.devices
        if entry.holdings and all(each.scheme is KAI for each in entry.holdings)
    )
    return dict.fromkeys((*reserved, *held), KAI.value)


def held_on_unknown_gpus(
    ledger: Ledger, pods: Iterable[Pod], of_kai: Mapping[str, str]
) -> tuple[Holding, ...]:
    """What the ``pods`` of the node hold of GPUs that no object names.

    Pods of which the ledger has the GPUs are none of them. NVIDIA's plugin allocates a GPU of KAI's
    to nobody else.
    """
    placed = {each.pod.uid for each in ledger.holdings if each.scheme is KAI and each.share.device}
    devices = tuple(entry for entry in ledger.devices if entry.device.name not in of_kai)
    others = replace(ledger, devices=devices) if of_kai else ledger
    return on_unknown_gpus((pod for pod in pods if node_uid(pod) not in placed), others)


def unchecked_note(pods: Iterable[Pod], *, lists_all: bool) -> Iterator[str]:
    """The note about tenants whose reservation pods may only be missing in what was read.

    ``lists_all`` is whether the pods of all namespaces were read. One reservation pod shows that
    its namespace was.
    """
    known = tuple(pods)
    if lists_all or any(map(is_reservation, known)):
        return
    tenants = sorted(
        pod.ref.key for pod in known if pod.node and holds_devices(pod) and groups_of(pod)
    )
    if tenants:
        yield (
            "whether the GPU groups of KAI Scheduler have reservation pods is not checked, since"
            " nothing shows that the dump has the pods of all namespaces"
            f" (kubectl get nodes,pods,namespaces -A -o json): {examples_text(tenants)}"
        )
