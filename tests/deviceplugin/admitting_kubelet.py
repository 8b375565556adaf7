"""A stub kubelet that admits pods: it asks for devices, and writes down for whom, as the real one.

    kubelet.admit(uid, "main", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096})
    kubelet.start_container(uid, "main")      # PreStartContainer

It allocates the first healthy IDs that nobody has, so that those of pods that are gone come back at
once. Its checkpoint has the checksum of a real one.
"""

import base64
import json
from pathlib import Path

import msgspec

from simulator.tree import cgroup_path
from tests.deviceplugin.stub_kubelet import StubKubelet
from tests.support.waiting import wait_until
from vgpu.sources.kubelet_checkpoint import CheckpointData, checksum_of

FILE = "kubelet_internal_checkpoint"


class AdmittingKubelet(StubKubelet):
    """Its folder is the kubelet's of device plugins; ``cgroupfs`` is where pods have cgroups."""

    def __init__(self, folder, cgroupfs, **more):
        super().__init__(folder, **more)
        self.cgroupfs = Path(cgroupfs)
        self.sums_up = True
        """Whether its checkpoint has the right checksum, which is slow to find for long lists."""
        self.table = {}
        """(UID, container, resource) -> (IDs, answer)."""
        self.cgroupfs.mkdir(parents=True, exist_ok=True)
        (self.cgroupfs / "cgroup.controllers").write_text("cpu memory\n")

    @property
    def checkpoint(self):
        return self.folder / FILE

    # ------------------------------------------------------------ pods

    def admit(self, uid, container, asked, *, heard=True):
        """Allocate for one container; the answer of the first resource.

        Not ``heard``, it dies before it can write the answer down. Raises grpc.RpcError.
        """
        self.made_cgroup(uid)
        answers = []
        for resource, count in asked.items():
            wait_until(
                lambda r=resource, c=count: len(self.free(r)) >= c,
                f"{count} of {resource} are free",
                context=lambda: str(self.devices),
            )
            ids = self.free(resource)[:count]
            answer = self.allocate(resource, ids)
            answers.append(answer)
            if heard:
                self.table[uid, container, resource] = ids, answer.SerializeToString()
                self.write()
        return answers[0]

    def made_cgroup(self, uid):
        """The pod has its cgroup, as long as it has containers."""
        self._cgroup(uid).mkdir(parents=True, exist_ok=True)

    def start_container(self, uid, container, resource):
        """PreStartContainer; raises grpc.RpcError if it may not start."""
        return self.prestart(resource, self.table[uid, container, resource][0])

    def end_pod(self, uid):
        """Its containers are gone; the entries stay until the next admission of a real kubelet."""
        self._cgroup(uid).rmdir()
        self.table = {key: held for key, held in self.table.items() if key[0] != uid}

    def free(self, resource):
        """IDs that are healthy and nobody's, in order."""
        taken = {each for key, (ids, _) in self.table.items() if key[2] == resource for each in ids}
        return sorted(self.healthy(resource) - taken)

    def _cgroup(self, uid):
        parts = ["kubepods", "besteffort", f"pod{uid}"]
        return self.cgroupfs / cgroup_path(parts, systemd=True).removeprefix("/")

    # ------------------------------------------------------------ the checkpoint

    def write(self):
        """Write the checkpoint, by a rename."""
        registered = {resource: sorted(health) for resource, health in self.devices.items()}
        new = self.checkpoint.with_suffix(".new")
        new.write_text(content(self.table, registered, sums_up=self.sums_up))
        new.rename(self.checkpoint)


def content(table, registered=(), *, sums_up=True):
    """A checkpoint; the table is as a kubelet's, with all device IDs of each resource."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(ids)},
            "AllocResp": base64.b64encode(answer).decode(),
        }
        for (uid, container, resource), (ids, answer) in table.items()
    ]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": dict(registered)}
    return json.dumps({"Data": data, "Checksum": checksum(data) if sums_up else 0})


def checksum(data):
    """Of the checkpoint's data."""
    return checksum_of(msgspec.json.decode(json.dumps(data), type=CheckpointData))
