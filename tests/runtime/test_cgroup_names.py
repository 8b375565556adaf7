"""Whose a process is, by the name of its cgroup: every driver, version and runtime."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.facts import ProcessOwner
from vgpu.sources.runtime import parse_cgroup, parse_cgroup_path

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
UID_ = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
NODE = "cd" * 32

SLICES = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"

IN_A_POD = {
    # cgroupfs driver: the path does not name the runtime
    "burstable": (f"/kubepods/burstable/pod{UID}/{ID}", ""),
    "besteffort": (f"/kubepods/besteffort/pod{UID}/{ID}", ""),
    "guaranteed": (f"/kubepods/pod{UID}/{ID}", ""),
    "cri-o with cgroupfs": (f"/kubepods/burstable/pod{UID}/crio-{ID}", "cri-o"),
    # systemd driver
    "containerd": (f"/{SLICES}/cri-containerd-{ID}.scope", "containerd"),
    "cri-o": (f"/{SLICES}/crio-{ID}.scope", "cri-o"),
    "cri-o, nested cgroup": (f"/{SLICES}/crio-{ID}.scope/container", "cri-o"),
    "docker": (f"/{SLICES}/docker-{ID}.scope", "docker"),
    "guaranteed with systemd": (
        f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
        "containerd",
    ),
    "another runtime": (f"/{SLICES}/kata-{ID}.scope", "kata"),
    # the kubelet uses systemd, the runtime does not
    "mixed drivers": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
        "containerd",
    ),
    # kubelets in containers or under a cgroup of their own
    "kind": (
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            f"/kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope"
        ),
        "containerd",
    ),
    "kind, seen from its host": (
        (
            f"/system.slice/docker-{NODE}.scope/kubelet.slice/kubelet-kubepods.slice"
            f"/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope"
        ),
        "containerd",
    ),
    "kind with cgroupfs": (f"/docker/{NODE}/kubelet/kubepods/burstable/pod{UID}/{ID}", ""),
    "k3s in docker": (f"/docker/{NODE}/kubepods/besteffort/pod{UID}/{ID}", ""),
    "a cgroup root": (f"/node2/kubepods/burstable/pod{UID}/{ID}", ""),
    "docker inside of a pod": (f"/kubepods/burstable/pod{UID}/{ID}/docker/{NODE}", ""),
    # a reader with a cgroup namespace of its own
    "relative": (f"/../../pod{UID}/{ID}", ""),
    "relative, another class": (f"/../../../besteffort/pod{UID}/{ID}", ""),
    "relative with systemd": (
        f"/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
        "containerd",
    ),
    "removed meanwhile": (f"/{SLICES}/cri-containerd-{ID}.scope (deleted)", "containerd"),
}


@pytest.mark.parametrize(("path", "runtime"), IN_A_POD.values(), ids=IN_A_POD)
def test_a_container_of_a_pod_is_found(path, runtime):
    assert parse_cgroup(f"0::{path}\n") == ProcessOwner(ID, UID, runtime)


def test_a_static_pods_uid_has_no_dashes():
    owner = ProcessOwner(ID, STATIC, "containerd")
    slices = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice"
    assert parse_cgroup_path(f"/{slices}/cri-containerd-{ID}.scope") == owner
    assert parse_cgroup_path(f"/kubepods/burstable/pod{STATIC}/{ID}") == ProcessOwner(
        ID, STATIC, ""
    )


def test_gpu_managers_worked_example_is_read_in_both_drivers():
    # Names {kubepods, burstable, pod1234-abcd-5678-efgh}; the second is systemd's.
    uid = "1234-abcd-5678-efgh"
    cgroupfs = "/kubepods/burstable/pod1234-abcd-5678-efgh"
    systemd = (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice"
    )
    assert parse_cgroup_path(f"{cgroupfs}/{ID}") == ProcessOwner(ID, uid, "")
    assert parse_cgroup_path(f"{systemd}/cri-containerd-{ID}.scope") == ProcessOwner(
        ID, uid, "containerd"
    )


OUTSIDE = {
    "docker with cgroupfs": (f"/docker/{ID}", "docker"),
    "docker with systemd": (f"/system.slice/docker-{ID}.scope", "docker"),
    "podman": (f"/machine.slice/libpod-{ID}.scope/container", "podman"),
    "containerd without Kubernetes": (f"/default/{ID}", ""),
    "docker inside of docker": (f"/docker/{ID}/docker/{NODE}", "docker"),
    "a kind node's own process": (f"/docker/{ID}/kubelet", "docker"),
    "a sibling in our own pod": (f"/../cri-containerd-{ID}.scope", "containerd"),
}


@pytest.mark.parametrize(("path", "runtime"), OUTSIDE.values(), ids=OUTSIDE)
def test_a_container_outside_of_a_known_pod_has_no_pod_uid(path, runtime):
    assert parse_cgroup_path(path) == ProcessOwner(ID, "", runtime)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/user.slice/user-1000.slice/session-3.scope",
        "/system.slice/kubelet.service",
        "/kubepods.slice/kubepods-burstable.slice",
        f"/{SLICES}",
        f"/kubepods/burstable/pod{UID}",
        f"/{SLICES}/crio-conmon-{ID}.scope",
        f"/machine.slice/libpod-conmon-{ID}.scope",
        f"/docker/{ID[:-1]}",
        f"/docker/{ID.upper()}",
        "/podman.slice/pods",
        "/process_api/2c1751264f18470db1e7724ce0b89f75",
    ],
)
def test_a_process_outside_of_containers_is_nobodys(path):
    assert parse_cgroup_path(path) is None


def test_a_tenant_cannot_pretend_to_be_another_pod_from_inside_its_container():
    other = f"kubepods/burstable/pod{UID.replace('9', '8')}/{NODE}"
    assert parse_cgroup_path(f"/kubepods/burstable/pod{UID}/{ID}/{other}") == ProcessOwner(
        ID, UID, ""
    )


def test_a_cgroup_root_whose_name_begins_like_a_pods_is_not_one():
    path = f"/podruntime/kubepods/burstable/pod{UID}/{ID}"
    assert parse_cgroup_path(path) == ProcessOwner(ID, UID, "")
    path = f"/podruntime.slice/podruntime-kubepods.slice/podruntime-kubepods-pod{UID_}.slice"
    assert parse_cgroup_path(f"{path}/crio-{ID}.scope") == ProcessOwner(ID, UID, "cri-o")


def test_a_podman_folder_is_not_taken_for_a_pod():
    assert parse_cgroup_path(f"/podman/{ID}") == ProcessOwner(ID, "", "")


def test_version_1_has_a_line_for_each_hierarchy():
    path = f"/kubepods/burstable/pod{UID}/{ID}"
    text = f"12:pids:{path}\n11:cpu,cpuacct:{path}\n1:name=systemd:{path}\n"
    assert parse_cgroup(text) == ProcessOwner(ID, UID, "")


def test_a_line_that_names_a_pod_counts_more_than_one_that_does_not():
    text = f"3:memory:/docker/{NODE}\n2:pids:/\n1:name=systemd:/{SLICES}/crio-{ID}.scope\n0::/\n"
    assert parse_cgroup(text) == ProcessOwner(ID, UID, "cri-o")


def test_the_unified_hierarchy_of_a_hybrid_host_is_read_too():
    text = f"2:pids:/\n1:name=systemd:/\n0::/system.slice/docker-{ID}.scope\n"
    assert parse_cgroup(text) == ProcessOwner(ID, "", "docker")


PARTS = st.sampled_from(
    [
        "kubepods",
        "kubepods.slice",
        f"pod{UID}",
        f"a-pod{UID_}.slice",
        ID,
        f"crio-{ID}.scope",
        "..",
        "",
    ]
)


@given(st.text() | st.lists(PARTS).map("/".join))
def test_any_text_gives_an_owner_or_nobody(text):
    owner = parse_cgroup(text)
    assert owner is None or len(owner.container_id) == 64
