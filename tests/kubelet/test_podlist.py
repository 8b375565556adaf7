"""The pods of a kubectl dump."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.facts import ContainerName, PodStatus
from vgpu.model import PodRef
from vgpu.reasons import Reason, SourceError
from vgpu.sources.kubelet_podlist import parse_pods


def pod(name="web", *, metadata=None, containers=(), **parts):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"} | (metadata or {}),
        "spec": {"containers": list(containers), "nodeName": "node1"},
        "status": {"phase": "Running"},
    } | parts


def dump(*pods):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)}).encode()


def wants(*pods):
    return [status.wants_gpu for status in parse_pods(dump(*pods)).statuses]


def test_a_dump_gives_names_container_ids_and_states():
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
    told = parse_pods(dump(pod("web", status=status), pod("idle")))
    web, idle = PodRef("uid-web", "default", "web"), PodRef("uid-idle", "default", "idle")
    assert told.pods == {"uid-web": web, "uid-idle": idle}
    assert told.containers == {
        "abc": ContainerName("default", "web", "main", "uid-web"),
        "def": ContainerName("default", "web", "init", "uid-web"),
        "012": ContainerName("default", "web", "debug", "uid-web"),
    }
    assert told.statuses == (
        PodStatus(web, "Failed", "UnexpectedAdmissionError", wants_gpu=False),
        PodStatus(idle, "Running", "", wants_gpu=False),
    )


def test_a_static_pod_has_the_uid_that_the_kubelet_uses():
    metadata = {"annotations": {"kubernetes.io/config.mirror": "f" * 32}}
    assert list(parse_pods(dump(pod(metadata=metadata))).pods) == ["f" * 32]


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
def test_asking_for_a_shared_gpu_is_seen_in_requests_limits_and_init_containers(resource):
    assert wants(
        pod(containers=[{"resources": {"limits": {resource: "1"}}}]),
        pod(containers=[{}, {"resources": {"requests": {resource: "2k"}}}]),
        pod(spec={"initContainers": [{"resources": {"limits": {resource: 1}}}]}),
        pod(containers=[{"resources": {"limits": {resource: "0", "cpu": "1"}}}]),
    ) == [True, True, True, False]


def test_kubeshare_asks_by_annotation_or_label():
    assert wants(
        pod(metadata={"annotations": {"kubeshare/gpu_request": "0.5"}}),
        pod(metadata={"labels": {"sharedgpu/gpu_limit": "1.0"}}),
        pod(metadata={"annotations": {"kubeshare.example/other": "x"}}),
    ) == [True, True, False]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"items":[{}]}',
        b'{"items":[{"metadata":{"name":"a","namespace":"b","uid":1}}]}',
        b'{"items":[{"metadata":{"name":"\xff"}}]}',
        b'{"x":' + b"[" * 100_000,
    ],
    ids=repr,
)
def test_what_is_not_a_dump_is_malformed(content):
    with pytest.raises(SourceError) as refused:
        parse_pods(content)
    assert refused.value.reason is Reason.MALFORMED


@given(st.binary(max_size=200))
def test_any_bytes_give_pods_or_the_typed_error(content):
    try:
        parse_pods(content)
    except SourceError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017


def test_only_this_nodes_pods_are_kept():
    there = pod("other", spec={"nodeName": "node2"})
    unbound = pod("pending", spec={})
    told = parse_pods(dump(pod("web"), there, unbound), node="node1")
    assert [ref.name for ref in told.pods.values()] == ["web"]
    assert len(told.statuses) == 1


def test_a_dump_without_a_pod_of_this_node_is_refused_by_its_name():
    with pytest.raises(SourceError) as refused:
        parse_pods(dump(pod()), node="elsewhere")
    assert refused.value.reason is Reason.ABSENT
    assert "'elsewhere' (--node-name)" in refused.value.detail
