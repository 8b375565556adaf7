"""What gpu-manager keeps on a node's disk: limits, pids, its checkpoint, and names of cgroups."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.gaia import migration
from simulator.tree import cgroup_path, container_path
from vgpu.model.allocation import Allocation, Share
from vgpu.model.facts import ProcessOwner
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import ContainerState, Pod, Status, holds_devices
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.topology import LinkLevel, TopologyGpu, grow
from vgpu.model.units import GAIA_MEMORY_BLOCK
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.gaia.grant import limits
from vgpu.sources.runtime import parse_cgroup_path

REF = PodRef("9a422c32-4fc2-11e9-bb64-505dac4c3a38", "ml", "train-0")


def refusal(call, *arguments, **options):
    with pytest.raises(SourceError) as error:
        call(*arguments, **options)
    return error.value


# ---------------------------------------------------------------- vcuda.config


def test_half_a_gpu_with_thirty_blocks_is_limited_to_7680_mib_and_50_percent():
    """T13."""
    half = Allocation("main", (Share("/dev/nvidia0", 30 * GAIA_MEMORY_BLOCK, 500),), Phase.ASSIGNED)
    config = limits(REF, half, driver=(470, 57))
    assert (config.memory_bytes, config.cores_limit_percent) == (8053063680, 50)
    assert (config.hard_limit, config.enable, config.limit_percent) == (True, True, 0)
    content = vcuda_config.encode(config)
    assert vcuda_config.decode(content) == config
    assert content[8192:8232] == bytes(16) + struct.pack("<Qiiii", 8053063680, 50, 1, 470, 57)


def test_a_core_limit_makes_the_request_soft():
    half = Allocation("main", (Share("/dev/nvidia0", GAIA_MEMORY_BLOCK, 500),), Phase.ASSIGNED)
    config = limits(REF, half, driver=(470, 57), limit_milli=800, bus_id="0000:3b:00.0")
    assert (config.hard_limit, config.limit_percent, config.utilization_percent) == (False, 80, 50)
    assert config.bus_id == "0000:3b:00.0"


def test_whole_gpus_are_not_limited():
    gpus = (Share("/dev/nvidia0", None, 1000), Share("/dev/nvidia3", None, 1000))
    config = limits(REF, Allocation("main", gpus, Phase.ASSIGNED), driver=(470, 57))
    assert (config.enable, config.utilization_percent, config.memory_bytes) == (False, 200, 0)


def test_there_are_no_limits_for_nothing():
    with pytest.raises(ClaimError):
        limits(REF, Allocation("main", (), Phase.ASSIGNED), driver=(470, 57))


# ---------------------------------------------------------------- pids.config


def test_pids_are_little_endian_and_ascend_because_the_library_searches_by_halves():
    content = vcuda_config.encode_pids([70000, 12, 4194304, 12])
    assert content == struct.pack("<iii", 12, 70000, 4194304)
    assert content[:4] == b"\x0c\0\0\0"


def test_what_gpu_manager_left_unsorted_is_read():
    assert vcuda_config.decode_pids(struct.pack("<iii", 9, 3, 7)) == (3, 7, 9)


def test_a_file_that_was_just_truncated_has_no_pids():
    assert vcuda_config.decode_pids(b"") == ()


@pytest.mark.parametrize("pids", [[0], [-1], [2**31], range(1, 1026)])
def test_what_the_library_cannot_take_is_not_written(pids):
    assert refusal(vcuda_config.encode_pids, pids).reason is Reason.MALFORMED


@pytest.mark.parametrize(
    "content", [b"\0", b"\0" * 4, b"\xff" * 4, struct.pack("<1025i", *range(1, 1026))]
)
def test_other_bytes_are_malformed(content):
    assert refusal(vcuda_config.decode_pids, content, "file").object_name == "file"


@given(st.sets(st.integers(1, 2**31 - 1), max_size=40))
def test_pids_that_were_written_are_read(pids):
    assert vcuda_config.decode_pids(vcuda_config.encode_pids(pids)) == tuple(sorted(pids))


def test_a_full_file_has_4096_bytes():
    full = vcuda_config.encode_pids(range(1, 1025))
    assert len(full) == vcuda_config.PIDS_LIMIT == 4096
    assert len(vcuda_config.decode_pids(full)) == 1024


@given(st.binary(max_size=40))
def test_any_bytes_give_pids_or_the_typed_error(content):
    try:
        pids = vcuda_config.decode_pids(content)
    except SourceError:
        return
    assert all(pid > 0 for pid in pids)


# ---------------------------------------------------------------- the checkpoint


def checkpoint(pods):
    return json.dumps({"PodGPUMapping": pods}).encode()


def info(*devices, cores=100, memory=0):
    return {
        "Devices": [f"/dev/nvidia{number}" for number in devices],
        "Cores": cores,
        "Memory": memory,
    }


def test_the_checkpoint_has_parts_and_whole_gpus():
    pods = migration.parse_checkpoint(
        checkpoint(
            {
                "uid-1": {
                    "main": info(3, 1, cores=200),
                    "more": info(0, cores=5, memory=268435456),
                },
                "uid-2": {},
            }
        )
    )
    assert pods == {
        "uid-1": (
            Allocation(
                "main",
                (Share("/dev/nvidia1", None, 1000), Share("/dev/nvidia3", None, 1000)),
                Phase.ASSIGNED,
            ),
            Allocation("more", (Share("/dev/nvidia0", 268435456, 50),), Phase.ASSIGNED),
        ),
        "uid-2": (),
    }


@pytest.mark.parametrize("content", [b'{"PodGPUMapping":{}}', b'{"PodGPUMapping":null}'])
def test_an_empty_checkpoint_holds_nothing(content):
    assert migration.parse_checkpoint(content) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        info(cores=100),
        info(0, 1, cores=100),
        info(0, cores=200),
        info(0, 0, cores=100),
        info(0, "ctl", cores=100),
        info(0, 0, cores=200),
        info(0, 1, cores=50),
        info(0, cores=150),
        info(0, cores=0),
        info(0, cores=6500),
        info(0, cores=True),
        info(0, cores=50, memory=-1),
        info(0, cores=50, memory=2**60),
        info("ctl"),
        info(""),
        info("0\n"),
        info("1000"),
        None,
        {"Devices": None, "Cores": 100, "Memory": 0},
        {"Devices": ["/dev/nvidia0"], "Cores": 100},
    ],
)
def test_an_entry_that_cannot_be_right_refuses_the_whole_file(wrong):
    content = checkpoint({"uid-1": {"main": wrong}})
    error = refusal(migration.parse_checkpoint, content, "file")
    assert error.reason is Reason.MALFORMED
    assert error.object_name.startswith("file")


VALID = checkpoint({"uid": {"main": info(0, 1, cores=200), "more": info(2, cores=50, memory=9)}})


@given(
    st.binary(max_size=60)
    | st.tuples(st.integers(0, len(VALID)), st.binary(max_size=4), st.integers(0, 4)).map(
        lambda cut: VALID[: cut[0]] + cut[1] + VALID[cut[0] + cut[2] :]
    )
)
def test_any_bytes_give_a_checkpoint_or_the_typed_error(content):
    try:
        pods = migration.parse_checkpoint(content)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
        return
    assert all(one.shares for allocations in pods.values() for one in allocations)


def test_a_deeply_nested_file_is_malformed():
    content = b'{"PodGPUMapping":' + b"[" * 100_000
    assert refusal(migration.parse_checkpoint, content).reason is Reason.MALFORMED


def test_of_the_checkpoint_only_pods_that_still_hold_devices_count():
    """T8: pending stays; failed, and deleted with its container gone, are free."""
    gone = Status("main", ContainerState.TERMINATED)
    pods = [
        Pod(PodRef("pending-uid", "test-ns", "pending"), node="node", phase="Pending"),
        Pod(PodRef("failed-uid", "test-ns", "failed"), node="node", phase="Failed"),
        Pod(PodRef("exited-uid", "test-ns", "exited"), node="node", statuses=(gone,), deleted_at=1),
    ]
    content = checkpoint(
        {pod.ref.uid: {pod.ref.name: info(number, memory=1)} for number, pod in enumerate(pods)}
    )
    held = migration.parse_checkpoint(content)
    tree = grow(
        [TopologyGpu(number, number, memory_bytes=2**30) for number in range(6)],
        lambda *_: LinkLevel.PIX,
    )
    taken = tree.holding(
        share
        for pod in pods
        if holds_devices(pod)
        for allocation in held[pod.ref.uid]
        for share in allocation.shares
    )
    assert len(taken.available(taken.root)) == 5
    assert (taken.gpus[0].free_milli, taken.gpus[0].free_bytes) == (0, 0)


# ---------------------------------------------------------------- cgroups

POD = ("kubepods", "burstable", "pod1234-abcd-5678-efgh")


def test_a_pods_cgroup_is_named_as_the_kubelet_names_it():
    """T14."""
    assert cgroup_path(POD, systemd=False) == "/kubepods/burstable/pod1234-abcd-5678-efgh"
    assert cgroup_path(POD, systemd=True) == (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice"
    )
    assert cgroup_path((), systemd=True) == "/"


@pytest.mark.parametrize("systemd", [False, True])
@pytest.mark.parametrize("runtime", ["containerd", "cri-o", "docker"])
@pytest.mark.parametrize("qos", [(), ("burstable",), ("besteffort",)])
def test_a_containers_cgroup_is_read_back_to_its_pod_and_runtime(qos, runtime, systemd):
    container_id = "0123456789abcdef" * 4
    path = container_path(
        ("kubepods", *qos, f"pod{REF.uid}"), container_id, runtime, systemd=systemd
    )
    named_runtime = runtime if systemd else ""  # the other driver's paths do not name it
    assert parse_cgroup_path(path) == ProcessOwner(container_id, REF.uid, named_runtime)


def test_the_scope_of_containerd_has_its_own_prefix():
    path = container_path(POD, "c1", "containerd", systemd=True)
    assert path.endswith("efgh.slice/cri-containerd-c1.scope")


@pytest.mark.parametrize(
    ("parts", "systemd"),
    [(("kubepods", "../etc"), False), (("..",), False), (("",), True), (("a_b",), True)],
)
def test_what_cannot_be_part_of_a_cgroups_name_is_refused(parts, systemd):
    assert refusal(cgroup_path, parts, systemd=systemd).reason is Reason.MALFORMED
