"""The pods of a kubectl dump."""

import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.facts import ContainerName, PodSummary
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.model.units import MIB
from vgpu.sources import pods as pods_module
from vgpu.sources.pods import PodFile

NOW = 1000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pods.json"


def pod(name="web", *, metadata=None, containers=(), **parts):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"} | (metadata or {}),
        "spec": {"containers": list(containers), "nodeName": "node1"},
        "status": {"phase": "Running"},
    } | parts


def write(path, *pods):
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)}))


def sampled(path, *pods, node=""):
    write(path, *pods)
    return PodFile(str(path), node).sample(NOW)


def wants(path, *pods):
    return [status.wants_gpu for status in sampled(path, *pods).statuses]


def refused(path, node=""):
    with pytest.raises(SourceError) as caught:
        PodFile(str(path), node).sample(NOW)
    return caught.value


# ---------------------------------------------------------------- what it contains


def test_a_dump_gives_names_container_ids_and_states(path):
    status = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://abc", "restartCount": 0},
            {"name": "waiting", "containerID": ""},
            {"name": "never"},
        ],
        "initContainerStatuses": [{"name": "init", "containerID": "cri-o://def"}],
        "ephemeralContainerStatuses": [{"name": "debug", "containerID": "docker://012"}],
    }
    sample = sampled(path, pod("web", status=status), pod("idle"))
    web, idle = PodRef("uid-web", "default", "web"), PodRef("uid-idle", "default", "idle")
    assert [one.ref for one in sample.pods] == [web, idle]
    assert sample.names == {"uid-web": web, "uid-idle": idle}
    assert sample.containers == {
        "abc": ContainerName("default", "web", "main", "uid-web"),
        "def": ContainerName("default", "web", "init", "uid-web"),
        "012": ContainerName("default", "web", "debug", "uid-web"),
    }
    assert sample.statuses == (
        PodSummary(web, "Failed", "UnexpectedAdmissionError", wants_gpu=False),
        PodSummary(idle, "Running", "", wants_gpu=False),
    )


def test_a_dump_is_not_complete(path):
    assert not sampled(path, pod()).complete


def test_a_static_pod_has_the_uid_that_the_kubelet_uses(path):
    metadata = {"annotations": {"kubernetes.io/config.mirror": "f" * 32}}
    status = {"containerStatuses": [{"name": "main", "containerID": "containerd://abc"}]}
    sample = sampled(path, pod(metadata=metadata, status=status))
    assert sample.names == {"f" * 32: PodRef("f" * 32, "default", "web")}
    assert sample.containers["abc"].pod_uid == "f" * 32
    assert [one.ref.uid for one in sample.statuses] == ["f" * 32]


def test_of_two_pods_that_call_themselves_one_static_pod_s_mirror_none_is_named(path):
    annotations = {"kubernetes.io/config.mirror": "f" * 32}
    static, forged = (
        pod(name, metadata={"annotations": annotations}) for name in ("static", "forged")
    )
    sample = sampled(path, static, forged, pod())
    assert set(sample.names) == {"uid-web"}
    assert sample.rejections == (
        Rejection(
            "f" * 32,
            Reason.AMBIGUOUS,
            "2 pods have this UID: default/forged, default/static",
        ),
    )


@pytest.mark.parametrize(
    "resource",
    [
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-cores",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "aliyun.com/gpu-mem",
        "tencent.com/vcuda-core",
        "tencent.com/vcuda-memory",
    ],
)
def test_asking_for_a_shared_gpu_is_seen_in_requests_limits_and_init_containers(path, resource):
    assert wants(
        path,
        pod("a", containers=[{"resources": {"limits": {resource: "1"}}}]),
        pod("b", containers=[{}, {"resources": {"requests": {resource: "2k"}}}]),
        pod("c", spec={"initContainers": [{"resources": {"limits": {resource: 1}}}]}),
        pod("d", containers=[{"resources": {"limits": {resource: "0", "cpu": "1"}}}]),
    ) == [True, True, True, False]


def test_kubeshare_asks_by_annotation_or_label(path):
    assert wants(
        path,
        pod("a", metadata={"annotations": {"kubeshare/gpu_request": "0.5"}}),
        pod("b", metadata={"labels": {"sharedgpu/gpu_limit": "1.0"}}),
        pod("c", metadata={"annotations": {"kubeshare.example/other": "x"}}),
    ) == [True, True, False]


def test_only_this_nodes_pods_are_kept(path):
    there = pod("other", spec={"nodeName": "node2"})
    unbound = pod("pending", spec={})
    sample = sampled(path, pod("web"), there, unbound, node="node1")
    assert [one.ref.name for one in sample.pods] == ["web"]
    assert [ref.name for ref in sample.names.values()] == ["web"]
    assert len(sample.statuses) == 1


def test_a_pod_that_is_listed_twice_counts_once(path):
    sample = sampled(path, pod(), pod(status={"phase": "Failed"}))
    assert [one.phase for one in sample.pods] == ["Failed"]
    assert [status.phase for status in sample.statuses] == ["Failed"]


# ---------------------------------------------------------------- the file


def test_a_dump_is_read_again_when_it_changes(path):
    write(path, pod("web"))
    file = PodFile(str(path))
    assert [one.ref.name for one in file.sample(NOW).pods] == ["web"]
    write(path)
    assert file.sample(NOW).pods == ()
    path.write_text("{")
    with pytest.raises(SourceError):
        file.sample(NOW)
    write(path, pod("again"))
    assert [one.ref.name for one in file.sample(NOW).pods] == ["again"]
    path.unlink()
    with pytest.raises(SourceError) as caught:
        file.sample(NOW)
    assert (caught.value.reason, caught.value.object_name) == (Reason.ABSENT, str(path))


def test_a_dump_behind_a_link_is_read_as_in_a_configmaps_volume(path, tmp_path):
    write(path, pod())
    (tmp_path / "link.json").symlink_to(path)
    assert len(PodFile(str(tmp_path / "link.json")).sample(NOW).pods) == 1


def test_only_a_regular_file_is_a_dump_and_nothing_blocks(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for name in ("fifo", "link", "socket", "."):
        error = refused(tmp_path / name)
        assert error.reason is Reason.NOT_REGULAR_FILE
        assert error.object_name == str(tmp_path / name)


def test_a_dump_of_just_the_limit_is_read_and_one_byte_more_is_too_large(path, monkeypatch):
    write(path, pod())
    size = path.stat().st_size
    monkeypatch.setattr(pods_module, "FILE_LIMIT", size)
    assert len(PodFile(str(path)).sample(NOW).pods) == 1
    monkeypatch.setattr(pods_module, "FILE_LIMIT", size - 1)
    error = refused(path)
    assert (error.reason, error.object_name) == (Reason.TOO_LARGE, str(path))


def test_a_dump_of_more_than_64_mib_is_too_large(path):
    with path.open("wb") as sparse:
        sparse.truncate(64 * MIB + 1)
    assert refused(path).reason is Reason.TOO_LARGE


def test_a_dump_without_a_pod_of_this_node_is_refused_by_its_name(path):
    write(path, pod())
    error = refused(path, "elsewhere")
    assert (error.reason, error.object_name) == (Reason.ABSENT, str(path))
    assert "'elsewhere' (--node-name)" in error.detail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"items":[1]}',
        b'{"items":[{}]}',
        b'{"items":[{"metadata":{"name":"\xff"}}]}',
        b'{"x":' + b"[" * 100_000,
        b"\xff" * MIB,
    ],
    ids=lambda content: repr(content[:60]),
)
def test_what_is_not_a_dump_is_malformed_and_named(path, content):
    path.write_bytes(content)
    error = refused(path)
    assert (error.reason, error.object_name) == (Reason.MALFORMED, str(path))


def test_a_pod_that_cannot_be_read_is_refused_and_the_others_are_there(path):
    broken = pod("broken")
    broken["metadata"]["uid"] = 1
    write(path, pod("web"), broken)
    sample = PodFile(str(path)).sample(NOW)
    assert [each.ref.name for each in sample.pods] == ["web"]
    (rejection,) = sample.rejections
    assert (rejection.reason, rejection.object_name.partition(" ")[0]) == (Reason.MALFORMED, "Pod")


@given(st.binary(max_size=200))
def test_any_bytes_give_pods_or_the_typed_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    try:
        PodFile(str(path)).sample(NOW)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
