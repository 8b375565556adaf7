"""The cgroups in which gpu-manager looks for a container's pids, by the kubelet's names.

Both cgroup drivers, as the kubelet names them (kubernetes ``pkg/kubelet/cm``, gpu-manager
``pkg/utils/cgroup``). :mod:`vgpu.sources.runtime` reads such paths; this makes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from simulator.objects import pod_objects, pods_file, stamp
from simulator.scenario import Scenario, SimulatedContainer, SimulatedPod
from simulator.scheme_objects import (
    MPS_RESOURCE,
    REPLICAS,
    SimulatedClaim,
    System,
    claims,
    grants,
    registered,
)
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MIB, WHOLE_DEVICE_PERCENT
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.kubeshare import gemini_config
from vgpu.sources.kubelet_checkpoint import fnv1a_32

SCOPE_PREFIXES = {"containerd": "cri-containerd", "cri-o": "crio"}
"""Runtime -> what its systemd scopes begin with; others begin with the runtime's own name."""


def cgroup_path(parts: Sequence[str], *, systemd: bool) -> str:
    """The path of the cgroup that is called ``parts``, below the root of the hierarchy.

    A dash is a level to systemd, so one inside a part is written as an underscore, and every level
    repeats the names above it. Raises SourceError MALFORMED for a part that cannot be a name.
    """
    for part in parts:
        if part in ("", ".", "..") or set(part) & set("/\0") or (systemd and "_" in part):
            raise SourceError(Reason.MALFORMED, "cgroup", f"no part of a name: {part[:64]!r}")
    if systemd:
        names = accumulate((part.replace("-", "_") for part in parts), "{}-{}".format)
        parts = [f"{name}.slice" for name in names]
    return "/" + "/".join(parts)


def container_path(pod: Sequence[str], container_id: str, runtime: str, *, systemd: bool) -> str:
    """The path of a container's cgroup in its pod's. Raises SourceError MALFORMED."""
    scope = f"{SCOPE_PREFIXES.get(runtime, runtime)}-{container_id}.scope"
    leaf = cgroup_path([scope if systemd else container_id], systemd=False)
    return cgroup_path(pod, systemd=systemd) + leaf


PROCFS = "proc"
CGROUPFS = "sys/fs/cgroup"
LOG_DIR = "var/log/pods"
CHECKPOINT = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
PODS_FILE = "pods.json"
GAIA_DIR = "etc/gpu-manager/vm"
KUBESHARE_DIR = "kubeshare/scheduler/config"
MPS_DIR = "run/nvidia/mps"
STATE_DIR = "var/lib/vgpu"  # empty: other plugins than ours run here

_HOST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_HOST_CGROUP = "user.slice/user-1000.slice/session-3.scope"
_CONTROLLERS = b"cpuset cpu io memory hugetlb pids rdma misc\n"


class FileTree(msgspec.Struct, frozen=True):
    """Files and symbolic links, by path; parent folders are understood."""

    files: dict[str, bytes]
    links: dict[str, str]


def tree(scenario: Scenario, alive: frozenset[int], start: float) -> FileTree:
    """The files on disk while the processes ``alive`` run; ``start`` is unix seconds."""
    files = dict(_host_files(scenario, alive))
    links = {f"{PROCFS}/self/ns/pid": _HOST_NAMESPACE}
    for pod, container in scenario.containers():
        if pod.running:
            files |= _container_files(pod, container, alive)
        if pod.running or pod.phase == "Succeeded":
            folder = f"{pod.ref.namespace}_{pod.ref.name}_{pod.ref.uid}/{container.name}"
            link = f"{pod.ref.name}_{pod.ref.namespace}_{container.name}-{container.id}.log"
            began = stamp(start + pod.created)
            files[f"{LOG_DIR}/{folder}/0.log"] = f"{began} stdout F started\n".encode()
            links[f"var/log/containers/{link}"] = f"../pods/{folder}/0.log"
    all_claims = claims(scenario, start)
    files |= _limit_files(all_claims)
    if any(claim.system is System.MPS for claim in all_claims):
        files |= _mps_files(scenario)
    files[PODS_FILE] = pods_file(pod_objects(scenario, start))
    files[CHECKPOINT] = checkpoint(scenario)
    return FileTree(files, links)


def _host_files(scenario: Scenario, alive: frozenset[int]) -> Iterator[tuple[str, bytes]]:
    yield f"{CGROUPFS}/cgroup.controllers", _CONTROLLERS
    yield f"{PROCFS}/1/cgroup", b"0::/init.scope\n"
    yield f"{PROCFS}/modules", b"nvidia 56823808 2 - Live 0x0000000000000000\n"
    for process in scenario.host_processes:
        if process.pid in alive:
            yield f"{PROCFS}/{process.pid}/cgroup", f"0::/{_HOST_CGROUP}\n".encode()


def _container_files(
    pod: SimulatedPod, container: SimulatedContainer, alive: frozenset[int]
) -> dict[str, bytes]:
    cgroup = cgroup_of(pod, container)
    processes = [process for process in container.processes if process.pid in alive]
    pids = "".join(f"{process.pid}\n" for process in processes)
    files = {f"{CGROUPFS}/{cgroup}/cgroup.procs": pids.encode()}
    for process in processes:
        folder, inside = f"{PROCFS}/{process.pid}", process.container_pid
        files[f"{folder}/cgroup"] = f"0::/{cgroup}\n".encode()
        files[f"{folder}/status"] = f"Name:\tpython\nNSpid:\t{process.pid}\t{inside}\n".encode()
    return files


def _limit_files(all_claims: tuple[SimulatedClaim, ...]) -> dict[str, bytes]:
    """The limit files of gpu-manager for each container, and of KubeShare for each shared GPU."""
    files, tenants = {}, dict[str, list[gemini_config.SharedPod]]()
    for claim in all_claims:
        if not claim.pod.admitted:
            continue
        ref, gpu = claim.pod.ref, claim.gpus[0]
        if claim.container.scheme is Scheme.GAIA:
            config = vcuda_config.VcudaConfig(
                pod_uid=ref.uid,
                limit_percent=0,
                container=claim.container.name,
                bus_id=gpu.pci_bus_id.removeprefix("0000"),
                memory_bytes=claim.memory,
                utilization_percent=claim.cores,
                hard_limit=True,
                driver=(580, 95),
                enable=claim.cores < WHOLE_DEVICE_PERCENT,
            )
            path = f"{GAIA_DIR}/{ref.uid}/{claim.container.id}/vcuda.config"
            files[path] = vcuda_config.encode(config)
        elif claim.container.scheme is Scheme.KUBESHARE:
            tenants.setdefault(gpu.uuid, []).append(
                gemini_config.SharedPod(
                    namespace=ref.namespace,
                    pod=ref.name,
                    request_milli=10 * (claim.container.cores_request_percent or 0),
                    limit_milli=10 * claim.cores,
                    memory_bytes=claim.memory,
                )
            )
    for uuid, pods in tenants.items():
        files[f"{KUBESHARE_DIR}/{uuid}"] = gemini_config.format_config(pods)
    return files


def _mps_files(scenario: Scenario) -> dict[str, bytes]:
    """What the MPS control daemon of NVIDIA's plugin leaves behind after its start.

    The plugin gives each client process an equal part of each GPU (k8s-device-plugin 0.18,
    ``cmd/mps-control-daemon``).
    """
    folder = f"{MPS_DIR}/{MPS_RESOURCE}"
    commands = [
        f"set_default_device_pinned_mem_limit {gpu.index} {gpu.memory_bytes // REPLICAS // MIB}M"
        for gpu in scenario.gpus
    ]
    commands.append(f"set_default_active_thread_percentage {WHOLE_DEVICE_PERCENT // REPLICAS}")
    texts = [f"Starting control daemon using socket /mps/{MPS_RESOURCE}/pipe/control"]
    texts += [f"Cmd:{command}" for command in commands]
    log = "".join(f"[2026-09-01 10:28:13.725 Control    69] {text}\n" for text in texts)
    return {f"{folder}/.started": b"", f"{folder}/log/control.log": log.encode()}


def cgroup_of(pod: SimulatedPod, container: SimulatedContainer) -> str:
    """The container's cgroup, relative to the root of the hierarchy.

    A guaranteed pod's slice is directly below ``kubepods.slice``.
    """
    classes = [] if pod.qos == "guaranteed" else [pod.qos]
    names = ["kubepods", *classes, f"pod{pod.ref.uid}"]
    return container_path(names, container.id, "containerd", systemd=True).removeprefix("/")


# ---------------------------------------------------------------- the kubelet's checkpoint


def checkpoint(scenario: Scenario) -> bytes:
    """The kubelet's device checkpoint, second version, with its checksum.

    The text under the checksum is what Go's spew prints of the data (kubernetes
    ``pkg/kubelet/cm/devicemanager/checkpoint``).
    """
    entries, texts = [], []
    for grant in grants(scenario):
        answer = allocate_response(grant.env)
        entries.append(
            {
                "PodUID": grant.pod_uid,
                "ContainerName": grant.container,
                "ResourceName": grant.resource,
                "DeviceIDs": {"-1": grant.device_ids},
                "AllocResp": answer,
            }
        )
        texts.append(
            f"{{PodUID:(string){grant.pod_uid} ContainerName:(string){grant.container}"
            f" ResourceName:(string){grant.resource} DeviceIDs:(checkpoint.DevicesPerNUMA)"
            f"map[-1:[{' '.join(grant.device_ids)}]]"
            f" AllocResp:([]uint8)[{' '.join(map(str, answer))}]}}"
        )
    devices = registered(scenario)
    lists = [f"{name}:[{' '.join(devices[name])}]" for name in sorted(devices)]
    spew = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        f"[{' '.join(texts)}] RegisteredDevices:(map[string][]string)map[{' '.join(lists)}]}}"
    )
    return msgspec.json.encode(
        {
            "Data": {"PodDeviceEntries": entries, "RegisteredDevices": devices},
            "Checksum": fnv1a_32(spew.encode()),
        }
    )


def allocate_response(env: Mapping[str, str]) -> bytes:
    """A device plugin's ContainerAllocateResponse (v1beta1): field 1 is the map ``envs``."""
    return b"".join(
        _field(1, _field(1, key.encode()) + _field(2, value.encode())) for key, value in env.items()
    )


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + _varint(rest) if rest else bytes((low,))
