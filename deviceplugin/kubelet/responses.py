"""The answer to Allocate for one container: its name and edits as the kubelet's message, and back.

The kubelet keeps the message unchanged in its checkpoint, beside the container that it was for:
there the plugin finds the name again. With CDI the name is a device of the kind ``vgpu.dev/share``
that the runtime looks up when it makes the container; without CDI it is an annotation of that key.
"""

from typing import Final

from google.protobuf.message import DecodeError

from deviceplugin.model import BINDING_KIND, is_binding_name
from vgpu.rpc.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse, DeviceSpec
from vgpu.rpc.deviceplugin_pb2 import Mount as MountMessage
from vgpu.schemes.codec import ContainerEdits, Mount

PERMISSIONS: Final = "rwm"
"""Permissions in the device cgroup, as gpu-manager sets them."""


def answer(name: str, edits: ContainerEdits, *, cdi: bool) -> ContainerAllocateResponse:
    """The message with name and edits; without a name, with the edits alone."""
    marks = {BINDING_KIND: name} if name and not cdi else {}
    return ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            MountMessage(
                container_path=mount.container, host_path=mount.host, read_only=mount.read_only
            )
            for mount in edits.mounts
        ],
        devices=[
            DeviceSpec(container_path=path, host_path=path, permissions=PERMISSIONS)
            for path in edits.devices
        ],
        annotations={**edits.annotations, **marks},
        cdi_devices=[CDIDevice(name=f"{BINDING_KIND}={name}")] if name and cdi else [],
    )


def read(message: bytes) -> tuple[str, ContainerEdits]:
    """Name and edits of an answer; the name is "" if it has none of our form, or several.

    Accepts any bytes: those that are no answer have no name and no edits.
    """
    try:
        response = ContainerAllocateResponse.FromString(message)
    except DecodeError:
        return "", ContainerEdits({})
    annotations = dict(response.annotations)
    kinds = (device.name.partition("=") for device in response.cdi_devices)
    names = {name for kind, _, name in kinds if kind == BINDING_KIND}
    names |= {annotations.pop(BINDING_KIND)} if BINDING_KIND in annotations else set()
    name = names.pop() if len(names) == 1 else ""
    edits = ContainerEdits(
        env=dict(response.envs),
        mounts=tuple(
            Mount(mount.host_path, mount.container_path, mount.read_only)
            for mount in response.mounts
        ),
        devices=tuple(device.host_path for device in response.devices),
        annotations=annotations,
    )
    return name if is_binding_name(name) else "", edits
