"""A sharing system that nobody knows, as its one row: whole GPUs, named in an annotation."""

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import Phase, Scheme
from vgpu.schemes.codec import BaseCodec, ContainerEdits, Slot
from vgpu.schemes.row import AnnotationRepair, KeyPrefixes, SchemeRow

RESOURCE = "toy.example/gpu"
GPUS = "toy.example/gpus"
DEVICE = "toy.example/device"
ASSIGNED = "toy.example/assigned"


class ToyCodec(BaseCodec, frozen=True):
    @property
    def name(self):
        return "toy"

    @property
    def scheme(self):
        return Scheme.named("toy")

    @property
    def resources(self):
        return (RESOURCE,)

    def requests(self, pod):
        return tuple(
            Request(container.name, container.limits[RESOURCE])
            for container in pod.containers
            if container.limits.get(RESOURCE)
        )

    def claim(self, pod):
        device = pod.annotations.get(DEVICE)
        if device is None:
            return None
        phase = Phase.ASSIGNED if pod.annotations.get(ASSIGNED) == "true" else Phase.ASSUMED
        allocation = Allocation(pod.apps[0], (Share(device),), phase)
        return Claim(self.scheme, pod.ref, pod.node, (allocation,))

    def claim_keys(self, pod):
        return tuple(sorted({DEVICE, ASSIGNED} & pod.annotations.keys()))

    def annotations(self, claim, devices, containers=()):
        (allocation,) = claim.allocations
        (share,) = allocation.shares
        assigned = allocation.phase is Phase.ASSIGNED
        return {DEVICE: share.device, ASSIGNED: "true" if assigned else "false"}

    def devices(self, node):
        uuids = filter(None, node.annotations.get(GPUS, "").split(","))
        return tuple(Device(uuid, memory_bytes=1 << 30) for uuid in uuids)

    def slot(self, resource, device_id):
        return Slot(resource, device_id, 0)

    def device_ids(self, resource, devices):
        return (device.uuid for device in devices)

    def edits(self, pod, allocation, devices):
        return ContainerEdits({})


TOY = SchemeRow(
    name="toy",
    scheme=Scheme.named("toy"),
    codec=lambda _: ToyCodec(),
    has_devices=lambda node: GPUS in node.annotations,
    keys=KeyPrefixes(
        resources=("toy.example/",), marks=("toy.example/",), evidence=("toy.example/",)
    ),
    repair=AnnotationRepair(reservation=(DEVICE,), allocated=((ASSIGNED, "true"),)),
    adapter="toy",
)
