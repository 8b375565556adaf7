"""Pod and container names from the names of log folders and links."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.facts import ContainerName
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, Rejection
from vgpu.sources import kubelet_names
from vgpu.sources.kubelet_names import (
    parse_container_link,
    parse_pod_folder,
    read_container_links,
    read_pod_folders,
)

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
STATIC_UID = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32


@pytest.mark.parametrize(
    ("name", "pod"),
    [
        (f"default_web-0_{UID}", PodRef(UID, "default", "web-0")),
        (f"kube-system_etcd-node1_{STATIC_UID}", PodRef(STATIC_UID, "kube-system", "etcd-node1")),
        (f"a_b.c.d_{UID}", PodRef(UID, "a", "b.c.d")),
    ],
)
def test_a_pod_folder_names_its_pod(name, pod):
    assert parse_pod_folder(name) == pod


@pytest.mark.parametrize(
    "name",
    [
        "",
        "default_web-0",
        f"default_web_0_{UID}",
        f"_web-0_{UID}",
        f"default__{UID}",
        "default_web-0_",
        f"Default_web-0_{UID}",
        f'def"ault_web-0_{UID}',
        f"default_web-0_{UID}\n",
        f"default_wéb_{UID}",
        f"default_web-0_{'x' * 65}",
        f"{'n' * 64}_web_{UID}",
    ],
)
def test_any_other_name_is_no_pods(name):
    assert parse_pod_folder(name) is None


def test_a_container_link_names_its_container():
    assert parse_container_link(f"web-0_default_main-{ID}.log") == (
        ID,
        ContainerName("default", "web-0", "main"),
    )
    assert parse_container_link(f"a.b_ns_side-car-2-{ID}.log") == (
        ID,
        ContainerName("ns", "a.b", "side-car-2"),
    )


@pytest.mark.parametrize(
    "name",
    [
        f"web-0_default_main-{ID[:11]}.log",  # cut by the kubelet to too little
        f"web-0_default_main-{ID}",
        f"web-0_default_-{ID}.log",
        f"web-0_default-{ID}.log",
        f"web-0_default_main-{ID.upper()}.log",
        "syslog",
    ],
)
def test_any_other_name_is_no_containers(name):
    assert parse_container_link(name) is None


def cut_link(pod, container="main", container_id=ID):
    """The link's name as kuberuntime's ``logSymlink`` makes it: 255 bytes at most."""
    return f"{pod}_default_{container}-{container_id}"[:251] + ".log"


def test_a_link_that_the_kubelet_has_cut_names_the_beginning_of_its_id():
    pod = "x" * 200
    container_id, name = parse_container_link(cut_link(pod))
    assert container_id == ID[: len(container_id)] != ID
    assert name == ContainerName("default", pod, "main")
    assert parse_container_link(cut_link("x" * 225)) is not None  # 12 digits
    assert parse_container_link(cut_link("x" * 226)) is None


@given(st.text() | st.binary().map(os.fsdecode))
def test_any_name_is_parsed_or_ignored(name):
    parse_pod_folder(name)
    parse_container_link(name)


def test_folders_give_pods_and_the_rest_is_refused_or_passed_over(tmp_path):
    (tmp_path / f"default_web-0_{UID}").mkdir()
    (tmp_path / f"default_file_{UID[:-1]}0").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"default_link_{UID[:-1]}1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / os.fsdecode(b"default_\xff_uid")).mkdir()
    pods, rejections = read_pod_folders(str(tmp_path))
    assert pods == {UID: PodRef(UID, "default", "web-0")}
    assert sorted((r.object_name, r.reason) for r in rejections) == [
        (f"{tmp_path}/default_\\xff_uid", Reason.MALFORMED),
        (f"{tmp_path}/elsewhere", Reason.MALFORMED),
    ]


def test_two_log_folders_of_one_pod_uid_name_no_pod_and_are_reported(tmp_path):
    for name in ("default_web-0", "other_forged", "third_forged"):
        (tmp_path / f"{name}_{UID}").mkdir()
    (tmp_path / f"default_fine_{UID[:-1]}0").mkdir()
    pods, rejections = read_pod_folders(str(tmp_path))
    assert pods == {f"{UID[:-1]}0": PodRef(f"{UID[:-1]}0", "default", "fine")}
    (refused,) = rejections
    assert refused == Rejection(
        f"{tmp_path}/default_web-0_{UID}",
        Reason.AMBIGUOUS,
        f"3 folders of pod UID {UID}; another one is other_forged_{UID}, …",
    )


def test_two_links_of_one_container_name_none_and_are_reported(tmp_path):
    for name in ("web-0_default_main", "web-1_default_main"):
        (tmp_path / f"{name}-{ID}.log").symlink_to(tmp_path / "gone")
    containers, rejections = read_container_links(str(tmp_path))
    assert containers == {}
    (refused,) = rejections
    assert refused == Rejection(
        f"{tmp_path}/web-0_default_main-{ID}.log",
        Reason.AMBIGUOUS,
        f"2 links of container {ID}; another one is web-1_default_main-{ID}.log",
    )


def test_links_are_named_without_looking_where_they_lead(tmp_path):
    (tmp_path / f"web-0_default_main-{ID}.log").symlink_to(tmp_path / "gone")
    (tmp_path / os.fsdecode(b"\xff.log")).touch()
    assert read_container_links(str(tmp_path)) == (
        {ID: ContainerName("default", "web-0", "main")},
        (),
    )


def test_more_entries_than_any_node_has_are_not_all_read(tmp_path, monkeypatch):
    monkeypatch.setattr(kubelet_names, "MAX_ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"default_web-{number}_{UID[:-1]}{number}").mkdir()
    pods, rejections = read_pod_folders(str(tmp_path))
    assert len(pods) == 3
    assert [rejection.reason for rejection in rejections] == [Reason.TOO_MANY_FILES]
