"""A node's cgroups and log links in a folder, and the client that gpu-manager's library runs.

host = Host(tmp_path)
container = host.start(pod.ref, "main", [4711])
register(socket, pod_uid=pod.ref.uid, container_id=container)
"""

import itertools

import grpc

from tests.support.waiting import WAIT_SECONDS
from vgpu.rpc import vcuda_pb2 as pb
from vgpu.sources.runtime import HOST_PID_NAMESPACE

_ids = itertools.count(1)


class Host:
    """Systemd's cgroups of version 2, or with ``cgroupfs`` those of version 1."""

    def __init__(self, root, *, v1=False):
        self.v1 = v1
        self.limits = root / "vm"
        self.cgroupfs = root / "cgroup"
        self.procfs = root / "proc"
        self.log_dir = root / "log/pods"
        self.links = root / "log/containers"
        (self.procfs / "self/ns").mkdir(parents=True)
        (self.procfs / "self/ns/pid").symlink_to(HOST_PID_NAMESPACE)
        (self.procfs / "1").mkdir()
        (self.procfs / "1/cgroup").write_text("0::/init.scope\n")
        self.links.mkdir(parents=True)
        self.log_dir.mkdir()
        self.cgroupfs.mkdir()
        if not v1:
            (self.cgroupfs / "cgroup.controllers").touch()
        self._tree("kubepods", "kubepods.slice").mkdir(parents=True)

    def _tree(self, v1, v2):
        return self.cgroupfs / "memory" / v1 if self.v1 else self.cgroupfs / v2

    def cgroup(self, uid, container):
        """The folder of a container's cgroup."""
        slice_ = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        return self._tree(
            f"kubepods/burstable/pod{uid}/{container}",
            f"kubepods.slice/kubepods-burstable.slice/{slice_}/cri-containerd-{container}.scope",
        )

    def start(self, ref, name, pids, *, linked=True):
        """A container's ID; ``linked`` once the kubelet has made its log link."""
        container = f"{next(_ids):064x}"
        self.put(ref.uid, container, pids)
        if linked:
            self.link(ref, name, container)
        return container

    def link(self, ref, name, container):
        (self.links / f"{ref.name}_{ref.namespace}_{name}-{container}.log").touch()

    def put(self, uid, container, pids):
        """These are the container's processes."""
        folder = self.cgroup(uid, container)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def end(self, uid, container):
        folder = self.cgroup(uid, container)
        (folder / "cgroup.procs").unlink()
        folder.rmdir()


def register(socket, timeout=WAIT_SECONDS, **fields):
    """What ``gpu-client`` does; the status code and its text where the call fails."""
    # A pool of its own: the library's would remember for a while that this path refused before.
    pool = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{socket}", options=pool) as channel:
        call = channel.unary_unary(
            "/vcuda.VCUDAService/RegisterVDevice",
            pb.VDeviceRequest.SerializeToString,
            pb.VDeviceResponse.FromString,
        )
        try:
            call(pb.VDeviceRequest(**fields), timeout=timeout)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return None
