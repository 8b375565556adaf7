"""The driver, the kernel and the files on the node, as statements."""

import msgspec

from tests.ledger.ledger_values import A, B
from vgpu.ledger.bounds import UNREGISTERED
from vgpu.ledger.from_node import devices_of, process_statements
from vgpu.ledger.limit_files import bus_id, limit_reports
from vgpu.ledger.regions import region_report
from vgpu.ledger.statements import Malformed, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.facts import (
    ContainerName,
    Gpu,
    GpuProcess,
    LimitFile,
    PodPids,
    ProcessOwner,
    ProcessSample,
    Region,
    RegionDevice,
    RegionFile,
    RegionProcess,
)
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.units import GIB

CID = "c" * 64
OWNER = ProcessOwner(CID, "u1", "containerd")
NAMES = {CID: ContainerName("team", "pod-u1", "main", "u1")}


def test_devices_are_found_by_uuid_index_and_bus_id():
    gpu = Gpu(A, 1, {"pci_bus_id": "00000000:3B:00.0", "name": "H200"}, {})
    sized = msgspec.structs.replace(gpu, readings={("memory_total_bytes",): 10.0 * GIB})
    instance = Gpu("MIG-1", 0, {"pci_bus_id": "00000000:3B:00.0"}, {}, parent=A)
    first, second, third = devices_of([gpu, sized, instance])
    assert first == Device(A, 1, None, model="H200", handles=("0000:3b:00.0",))
    assert second.memory_bytes == 10 * GIB
    assert third.names == ("MIG-1",)
    assert third.parent == A


def test_bus_ids_are_written_as_gpu_manager_does():
    assert bus_id("00000000:3B:00.0") == bus_id(" 0000:3b:00.0\n") == "0000:3b:00.0"
    assert bus_id("0:3b:00.0") == "0000:3b:00.0"
    assert bus_id("") == bus_id("3b") == ""


# ---------------------------------------------------------------- processes


def test_processes_of_one_container_are_one_statement():
    processes = [GpuProcess(7, B, GIB), GpuProcess(5, A, None), GpuProcess(6, A, GIB)]
    (statement,) = process_statements(processes, dict.fromkeys((5, 6, 7), OWNER), NAMES)
    assert statement.source is Source.PROCESS
    assert (statement.pod, statement.container) == (PodRef("u1", "", ""), "main")
    assert statement.shares == (Share(A), Share(B))
    assert statement.alive
    assert statement.where == "pid 5, 6, 7"


def test_a_container_without_a_name_is_its_pods_or_known_by_its_id():
    docker = ProcessOwner("0123456789ab" + "0" * 52, "", "docker")
    owners = {5: OWNER, 6: docker}
    processes = [GpuProcess(5, A, GIB), GpuProcess(6, A, GIB)]
    in_pod, outside = process_statements(processes, owners, {})
    assert (in_pod.pod.uid, in_pod.container, in_pod.alive) == ("u1", "", True)
    assert (outside.pod.uid, outside.container, outside.alive) == ("", "0123456789ab", True)


def test_a_name_that_belongs_to_another_pod_is_ignored():
    stolen = {CID: ContainerName("team", "other", "main", "u2")}
    (statement,) = process_statements([GpuProcess(5, A, GIB)], {5: OWNER}, stolen)
    assert (statement.pod.uid, statement.container) == ("u1", "")


def test_processes_in_no_container_are_reported_one_by_one_and_ended_ones_not_at_all():
    processes = [GpuProcess(5, A, GIB), GpuProcess(6, A, GIB), GpuProcess(7, A, GIB)]
    statements = process_statements(processes, {5: None, 6: None}, NAMES)
    assert [(s.pod.uid, s.container, s.where) for s in statements] == [
        ("", "", "pid 5"),
        ("", "", "pid 6"),
    ]


# ---------------------------------------------------------------- regions


def region(*slots, memory=2 * GIB, cores=30):
    device = RegionDevice(A, memory, cores)
    processes = tuple(RegionProcess(1, pid, status, ()) for pid, status in slots)
    whole = Region("v1.2", (device,), processes, len(slots), 1, 2, 0, None, 1, 2)
    return RegionFile("/regions/u1_main/x.cache", "u1", "main", whole)


def test_a_region_is_a_statement_of_its_limits():
    statement = region_report(region(), None, {}, UNREGISTERED).statement
    assert statement.source is Source.SHIM
    assert (statement.pod.uid, statement.container) == ("u1", "main")
    assert statement.shares == (Share(A, 2 * GIB, 300),)
    assert statement.scheme is Scheme.VOLCANO
    assert statement.where == "/regions/u1_main/x.cache"
    unlimited = region_report(region(memory=0, cores=100), None, {}, UNREGISTERED).statement
    assert unlimited.shares == (Share(A),)
    bare = region_report(region(cores=0), None, {}, UNREGISTERED).statement
    assert bare.shares == (Share(A, 2 * GIB),)


def test_a_region_is_alive_if_the_kernel_knows_one_of_its_processes_as_its_pods():
    def alive(slots, owners):
        pids = {"u1": PodPids({})}
        live = frozenset({"u1"})
        process = None if owners is None else ProcessSample(owners, True, live, pod_pids=pids)
        return region_report(region(*slots), process, NAMES, UNREGISTERED).statement.alive

    other = ProcessOwner(CID, "u2", "containerd")
    assert alive([(9, 1), (5, 1)], {5: OWNER})
    assert alive([(5, 2)], {5: OWNER})
    assert not alive([(5, 0)], {5: OWNER})  # its exit handler ran
    assert not alive([(5, 1)], {})  # it was killed
    assert not alive([(5, 1)], {5: other})  # the pid is a stranger's by now, or forged
    assert not alive([(5, 1)], {5: None})
    assert not alive([(5, 1)], None)


# ---------------------------------------------------------------- limit files


def gaia(**changes):
    limit = LimitFile(
        Scheme.GAIA,
        "/vm/u1/x/vcuda.config",
        pod_uid="u1",
        container="main",
        pci_bus_id="00000000:3B:00.0",
        memory_bytes=2 * GIB,
        cores_percent=60,
        cores_request_percent=50,
    )
    return msgspec.structs.replace(limit, **changes)


def gemini(**changes):
    limit = LimitFile(
        Scheme.KUBESHARE,
        f"/config/{A}",
        namespace="team",
        pod="pod-u1",
        device=A,
        memory_bytes=2 * GIB,
        cores_percent=100,
        cores_request_percent=50,
    )
    return msgspec.structs.replace(limit, **changes)


def limit_statements(limits, pods, names):
    stated = [each.statement for each in limit_reports(limits, pods, names, UNREGISTERED)]
    statements = [each for each in stated if isinstance(each, Statement)]
    return statements, [each for each in stated if isinstance(each, Malformed)]


def test_a_limit_file_reports_the_requested_cores():
    (statement,), _ = limit_statements([gaia()], [], {})
    assert statement.source is Source.LIMIT_FILE
    assert (statement.pod.uid, statement.container) == ("u1", "main")
    assert statement.shares == (Share("0000:3b:00.0", 2 * GIB, 500),)
    (unasked,), _ = limit_statements([gaia(cores_request_percent=None)], [], {})
    assert unasked.shares[0].cores_milli == 600
    (unlimited,), _ = limit_statements(
        [gaia(memory_bytes=None, cores_percent=None, cores_request_percent=None)], [], {}
    )
    assert unlimited.shares == (Share("0000:3b:00.0"),)


def test_a_limit_file_that_names_a_pod_is_that_of_the_only_one_called_so():
    pods = [PodRef("u1", "team", "pod-u1"), PodRef("u2", "team", "other")]
    (statement,), malformed = limit_statements([gemini()], pods, NAMES)
    assert (statement.pod.uid, statement.container) == ("u1", "main")
    assert malformed == []
    again = [*pods, PodRef("u3", "team", "pod-u1")]
    statements, (malformed,) = limit_statements([gemini()], again, NAMES)
    assert statements == []
    assert "2 pods team/pod-u1" in malformed.detail
    assert limit_statements([gemini()], [], {}) == ([], [])


def test_a_limit_file_of_a_pod_with_several_containers_is_the_pods():
    more = NAMES | {"d" * 64: ContainerName("team", "pod-u1", "side", "u1")}
    (statement,), _ = limit_statements([gemini()], [PodRef("u1", "team", "pod-u1")], more)
    assert statement.container == ""


def test_a_container_is_known_by_its_id_or_by_a_name_that_its_pod_has():
    (by_id,), _ = limit_statements([gaia(container="", container_id=CID)], [], NAMES)
    assert by_id.container == "main"
    statements, (malformed,) = limit_statements([gaia(container="forged")], [], NAMES)
    assert statements == []
    assert (malformed.container, malformed.scheme) == ("forged", Scheme.GAIA)
    (unchecked,), _ = limit_statements([gaia(container="unknown")], [], {})
    assert unchecked.container == "unknown"
