"""What containers use: the driver's processes added up, and nothing that is only guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.ledger.usage import (
    OVER_LIMIT_PERCENT,
    UnclearUse,
    Usage,
    certain,
    container_name,
    is_over,
    unclear_use,
    usages,
)
from vgpu.model.facts import ContainerName, Gpu, GpuProcess, GpuSample, ProcessOwner, ProcessSample
from vgpu.model.units import GIB

A, B = "GPU-a", "GPU-b"
NAMES = {
    "c1": ContainerName("team", "train", "main", "u1"),
    "c2": ContainerName("team", "train", "side", "u1"),
    "c3": ContainerName("team", "infer", "main", "u2"),
}


def driver(*processes, known=(A, B)):
    """(pid, device, bytes) each."""
    return GpuSample(
        gpus=(),
        processes=tuple(GpuProcess(*process) for process in processes),
        processes_known=frozenset(known),
    )


def kernel(**containers):
    """``c1=[pids]``: container ids of pods, of u1 but for c3 and c4, with their pids."""
    return {
        pid: ProcessOwner(one, "u2" if one in ("c3", "c4") else "u1", "containerd")
        for one, pids in containers.items()
        for pid in pids
    }


def added(gpu, owners):
    return usages(gpu, owners, lambda owner, _: container_name(owner, NAMES))


def unclear(gpu, owners, ended=()):
    process = ProcessSample(owners, True, None, ended=frozenset(ended))
    return unclear_use(gpu, process, added(gpu, owners))


def sure(gpu, owners, ended=()):
    """What is known to be all that a container uses of a device."""
    return tuple(certain(added(gpu, owners), unclear(gpu, owners, ended)))


def amounts(usage):
    return {(one.pod_uid, one.container, one.device): one.used_bytes for one in usage}


def test_processes_are_added_up_by_container_and_device():
    gpu = driver((1, A, GIB), (2, A, 2 * GIB), (1, B, 4 * GIB), (3, A, 8 * GIB), (4, A, 16 * GIB))
    owners = kernel(c1=[1, 2], c2=[3], c3=[4])
    usage = added(gpu, owners)
    assert set(usage) == {
        Usage("u1", "main", A, 3 * GIB, (1, 2)),
        Usage("u1", "main", B, 4 * GIB, (1,)),
        Usage("u1", "side", A, 8 * GIB, (3,)),
        Usage("u2", "main", A, 16 * GIB, (4,)),
    }
    assert sure(gpu, owners) == usage


def test_no_use_is_known_of_a_device_whose_process_list_is_not_complete():
    gpu = driver((1, A, GIB), (1, B, GIB), known=(B,))
    assert amounts(added(gpu, kernel(c1=[1]))) == {("u1", "main", B): GIB}


def test_a_process_that_has_ended_or_is_in_no_container_is_nobodys():
    gpu = driver((1, A, GIB), (2, A, GIB), (3, A, GIB))
    assert amounts(added(gpu, {2: None} | kernel(c1=[3]))) == {("u1", "main", A): GIB}


@pytest.mark.parametrize("sizes", [(None, GIB), (GIB, None), (None, None)])
def test_a_sum_of_which_a_part_is_hidden_is_unknown(sizes):
    gpu = driver(*((pid, A, size) for pid, size in enumerate(sizes)), (9, B, GIB))
    owners = kernel(c1=[0, 1, 9])
    assert amounts(added(gpu, owners)) == {("u1", "main", A): None, ("u1", "main", B): GIB}
    assert amounts(sure(gpu, owners)) == {("u1", "main", B): GIB}


def test_a_process_of_an_unnamed_container_may_be_any_of_its_pods():
    """On that device, and not of another pod."""
    gpu = driver((1, A, GIB), (2, A, GIB), (1, B, GIB), (3, A, GIB))
    usage = sure(gpu, kernel(c1=[1], unnamed=[2], c3=[3]))
    assert amounts(usage) == {("u1", "main", B): GIB, ("u2", "main", A): GIB}


def test_a_process_that_the_kernel_never_had_may_be_any_pods_on_its_device():
    gpu = driver((1, A, GIB), (1, B, GIB), (7, A, GIB))
    assert unclear(gpu, kernel(c1=[1])).devices == {A}
    assert amounts(sure(gpu, kernel(c1=[1]))) == {("u1", "main", B): GIB}


def test_a_process_that_has_ended_since_the_driver_listed_it_is_no_doubt():
    gpu = driver((1, A, GIB), (7, A, GIB))
    assert unclear(gpu, kernel(c1=[1]), ended=[7]) == UnclearUse()
    assert amounts(sure(gpu, kernel(c1=[1]), ended=[7])) == {("u1", "main", A): GIB}


def test_a_process_without_an_instance_leaves_only_its_own_pod_in_doubt():
    """On all instances of that GPU, and no other pod; a host's process concerns nobody."""
    gpus = (Gpu("GPU-m", 0, {}, {}), *(Gpu(one, 0, {}, {}, parent="GPU-m") for one in (A, B)))
    gpu = GpuSample(
        gpus,
        processes=(GpuProcess(1, A, GIB), GpuProcess(3, A, GIB)),
        processes_known=frozenset({A, B}),
        unplaced=(GpuProcess(2, "GPU-m", GIB), GpuProcess(9, "GPU-m", 1)),
    )
    owners = kernel(c1=[1, 2], c3=[3]) | {9: None}
    assert unclear(gpu, owners).places == {("u1", A), ("u1", B)}
    assert amounts(sure(gpu, owners)) == {("u2", "main", A): GIB}


def test_a_container_outside_kubernetes_leaves_the_pods_alone():
    owners = {2: ProcessOwner("0123456789abcdef", "", "docker")} | kernel(c1=[1])
    usage = sure(driver((1, A, GIB), (2, A, GIB)), owners)
    assert amounts(usage) == {("u1", "main", A): GIB, ("", "0123456789ab", A): GIB}


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([A, B]), st.none() | st.integers(0, 80 * GIB)),
        unique_by=lambda process: process[:2],
    ),
    st.dictionaries(st.integers(0, 9), st.sampled_from(["c1", "c2", "c3", "c4", "unnamed"])),
    st.randoms(use_true_random=False),
)
def test_what_is_certain_is_all_that_the_container_uses_in_any_order(processes, homes, random):
    owners = {
        pid: owner for pid, home in homes.items() for owner in kernel(**{home: [pid]}).values()
    }
    usage = amounts(sure(driver(*processes), owners))
    mixed = random.sample(processes, len(processes))
    assert amounts(sure(driver(*mixed), owners)) == usage
    for (uid, container, device), used in usage.items():
        assert all(pid in owners for pid, on, _ in processes if on == device)
        of_pod = [
            (owners[pid], size)
            for pid, on, size in processes
            if on == device and pid in owners and owners[pid].pod_uid == uid
        ]
        assert all(owner.container_id in NAMES for owner, _ in of_pod)
        own = [size for owner, size in of_pod if NAMES[owner.container_id].container == container]
        assert own
        assert used == sum(own)


@pytest.mark.parametrize(
    ("used", "over"), [(105, False), (106, True), (100, False), (0, False), (10**18, True)]
)
def test_a_limit_is_passed_beyond_its_tolerance(used, over):
    assert OVER_LIMIT_PERCENT == 105
    assert is_over(used, 100) is over


@given(st.integers(1, 2**60))
def test_the_tolerance_is_exact(limit_bytes):
    """Where floating point is not."""
    most = limit_bytes * OVER_LIMIT_PERCENT // 100
    assert not is_over(most, limit_bytes)
    assert is_over(most + 1, limit_bytes)
