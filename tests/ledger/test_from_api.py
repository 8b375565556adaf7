"""Pods as the API server has them, in the four languages, as statements and requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.ledger_values import NODE, A, B, evidence, pod, ref
from vgpu.ledger import Statement, merge
from vgpu.ledger.from_api import MIG_SLOT, read_pod
from vgpu.model.allocation import Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import SHARE_POD, Container, ContainerState, Status
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import ClaimProblem, counted_claim
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.volcano.codec import HAMI, Volcano

CODECS = (Volcano(memory_factor=10), Gpushare(), Gaia(), KubeShare())
UUID = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"

GPUSHARE = pod(
    "u1",
    containers=(Container("main", {"aliyun.com/gpu-mem": 3}), Container("proxy")),
    annotations={
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "20000000000",
    },
)
VOLCANO = pod(
    "u1",
    containers=(Container("main", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}),),
    annotations={
        "volcano.sh/vgpu-ids-new": f"{A},NVIDIA,1024,50:",
        "volcano.sh/devices-to-allocate": f"{A},NVIDIA,1024,50:",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/vgpu-node": "node-0",
        "volcano.sh/vgpu-time": "10",
    },
)
GAIA = pod(
    "u1",
    containers=(Container("main", {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}),),
    annotations={
        "tencent.com/predicate-gpu-idx-0": "1",
        "tencent.com/predicate-node": "node-0",
        "tencent.com/predicate-time": "10000000000",
        "tencent.com/gpu-assigned": "false",
    },
)
KUBESHARE = pod(
    "u1",
    annotations={
        "kubeshare/gpu_request": "0.5",
        "kubeshare/gpu_limit": "1.0",
        "kubeshare/gpu_mem": "1073741824",
        "kubeshare/GPUID": "zxcvb",
        SHARE_POD: "u1",
    },
)


def expected(scheme, share, phase, since=None, node=NODE):
    fields = (Source.ANNOTATIONS, ref("u1"), "main", (share,), scheme, phase, since)
    return Statement(*fields, node=node, where="annotations of team/pod-u1")


@pytest.mark.parametrize(
    ("claiming", "statement"),
    [
        (GPUSHARE, expected(Scheme.GPUSHARE, Share("1", 3 * GIB), Phase.ASSIGNED, 20.0, "")),
        (VOLCANO, expected(Scheme.VOLCANO, Share(A, 10240 * MIB, 500), Phase.ASSUMED, 10)),
        (GAIA, expected(Scheme.GAIA, Share("/dev/nvidia1", 8053063680, 500), Phase.ASSUMED, 10.0)),
        (KUBESHARE, expected(Scheme.KUBESHARE, Share("zxcvb", GIB, 500), Phase.ASSIGNED)),
    ],
    ids=["gpushare", "volcano", "gaia", "kubeshare"],
)
def test_a_claim_is_a_statement_for_each_container(claiming, statement):
    reading = read_pod(claiming, CODECS)
    assert reading.statements == (statement,)
    assert reading.malformed == ()


def test_a_share_of_a_pod_with_several_containers_is_the_pods():
    two = pod("u1", containers=(Container("a"), Container("b")), annotations=KUBESHARE.annotations)
    (statement,) = read_pod(two, CODECS).statements
    assert statement.container == ""


def test_statements_are_about_the_uid_that_the_node_knows():
    share_pod = pod("sp", annotations=KUBESHARE.annotations | {SHARE_POD: "made"})
    (statement,) = read_pod(share_pod, CODECS).statements
    assert statement.pod == PodRef("made", "team", "pod-sp")


def test_two_pods_in_one_mig_slot_are_double_booked():
    def in_slot(uid):
        annotations = VOLCANO.annotations | {"volcano.sh/vgpu-ids-new": f"{A}[2-1],NVIDIA,100,50:"}
        annotations.pop("volcano.sh/devices-to-allocate")
        (statement,) = read_pod(
            pod(uid, containers=VOLCANO.containers, annotations=annotations), CODECS
        ).statements
        return statement

    assert in_slot("u1").slices == ((MIG_SLOT, (f"{A}[2-1]",)),)
    both = merge(evidence(in_slot("u1"), in_slot("u2"), pods=(pod("u1"), pod("u2"))))
    assert [conflict.kind for conflict in both.conflicts] == ["double_booked"]
    assert both.conflicts[0].device == A


# ---------------------------------------------------------------- what is asked for


def test_what_a_container_asks_for_and_whether_it_runs():
    states = ((ContainerState.RUNNING, True), (ContainerState.WAITING, False))
    for state, running in states:
        asking = pod("u1", containers=GPUSHARE.containers, state=state)
        (wanted,) = read_pod(asking, CODECS).wanted
        assert (wanted.pod, wanted.request.container) == (ref("u1"), "main")
        assert wanted.request.memory_bytes == 3 * GIB
        assert wanted.resource == "aliyun.com/gpu-mem"
        assert wanted.running is running


def test_a_quantity_that_is_no_number_is_reported_for_a_pod_without_annotations():
    broken = Container("main", broken={"volcano.sh/vgpu-number": "1500m"})
    reading = read_pod(pod("u1", containers=(broken,)), CODECS)
    (malformed,) = reading.malformed
    assert (malformed.pod, malformed.scheme) == (ref("u1"), Scheme.VOLCANO)
    assert "1500m" in malformed.detail


def test_no_resource_serves_what_is_asked_for_by_annotation():
    (wanted,) = read_pod(KUBESHARE, CODECS).wanted
    assert (wanted.request.container, wanted.resource) == ("", "")


def test_nothing_is_waited_for_in_init_containers_and_in_pods_that_have_ended():
    limits = {"aliyun.com/gpu-mem": 3}
    init = pod("u1", containers=(Container("main", limits, kind=ContainerKind.INIT),))
    sidecar = pod("u1", containers=(Container("main", limits, kind=ContainerKind.SIDECAR),))
    ended = pod("u1", "Failed", containers=(Container("main", limits),))
    assert read_pod(init, CODECS).wanted == ()
    assert len(read_pod(sidecar, CODECS).wanted) == 1
    assert read_pod(ended, CODECS).wanted == ()


# ---------------------------------------------------------------- what cannot be read


def test_a_broken_annotation_is_a_value_that_names_pod_key_and_text():
    broken = GPUSHARE.annotations | {"ALIYUN_COM_GPU_MEM_IDX": "first"}
    broken_pod = pod("u1", containers=GPUSHARE.containers, annotations=broken)
    reading = read_pod(broken_pod, CODECS)
    assert reading.statements == ()
    (malformed,) = reading.malformed
    assert (malformed.pod, malformed.scheme) == (ref("u1"), Scheme.GPUSHARE)
    assert "ALIYUN_COM_GPU_MEM_IDX" in malformed.detail
    assert "'first'" in malformed.detail
    assert len(reading.wanted) == 1


def test_doubts_of_a_claim_are_kept_beside_it():
    doubtful = GPUSHARE.annotations | {"ALIYUN_COM_GPU_MEM_POD": "7"}
    doubtful_pod = pod("u1", containers=GPUSHARE.containers, annotations=doubtful)
    reading = read_pod(doubtful_pod, CODECS)
    assert len(reading.statements) == 1
    (malformed,) = reading.malformed
    assert "ALIYUN_COM_GPU_MEM_POD" in malformed.detail


def test_broken_annotations_of_a_finished_pod_are_not_reported():
    broken = GPUSHARE.annotations | {"ALIYUN_COM_GPU_MEM_IDX": "first"}
    ended_pod = pod("u1", "Succeeded", containers=GPUSHARE.containers, annotations=broken)
    assert read_pod(ended_pod, CODECS).malformed == ()


def test_a_pod_that_shares_no_gpu_makes_no_statement():
    reading = read_pod(pod("u1", statuses=(Status("main", ContainerState.RUNNING),)), CODECS)
    assert not any((reading.claims, reading.statements, reading.wanted, reading.malformed))


def test_other_gpus_of_the_same_pod_do_not_get_mixed_up():
    both = VOLCANO.annotations | {"volcano.sh/vgpu-ids-new": f"{A},NVIDIA,1024,50:{B},NVIDIA,1,0:"}
    both.pop("volcano.sh/devices-to-allocate")
    two_gpus = pod("u1", containers=VOLCANO.containers, annotations=both)
    (statement,) = read_pod(two_gpus, CODECS).statements
    assert statement.shares == (Share(A, 10240 * MIB, 500), Share(B, 10 * MIB, 0))


SYSTEMS = (*CODECS, Volcano(HAMI))
TEXTS = {
    **{key: text for each in (GPUSHARE, VOLCANO, GAIA) for key, text in each.annotations.items()},
    "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,1024,50:;",
    "volcano.sh/gpu-index": "0",
}
RESOURCES = (
    *("volcano.sh/vgpu-number", "volcano.sh/vgpu-cores", "volcano.sh/gpu-memory", "nvidia.com/gpu"),
    *("nvidia.com/gpumem", "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "tencent.com/vcuda-core"),
    "example.com/gpu",
)


@given(
    keys=st.sets(st.sampled_from(sorted(TEXTS)), max_size=3),
    limits=st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 2), max_size=2),
    advertised=st.none() | st.sets(st.sampled_from(RESOURCES), max_size=3),
    node=st.sampled_from([NODE, ""]),
    codec=st.sampled_from(SYSTEMS),
)
def test_all_that_counts_of_a_pod_in_a_system_is_read(keys, limits, advertised, node, codec):
    """Systems that a pod has nothing of are left out early: nothing of it may count there."""
    asking = pod(
        "u1",
        node=node,
        containers=(Container("main", limits),),
        annotations={key: TEXTS[key] for key in keys},
    )
    counted = counted_claim(asking, codec, advertised=advertised, resolves_defaults=False)
    reading = read_pod(asking, [codec], advertised)
    try:
        codec.requests(asking)
    except ClaimError:
        assert reading.malformed
        return
    if counted.detail:
        assert reading.malformed
    if counted.problem is not ClaimProblem.OTHER_NODE:
        assert reading.claims == ((counted.claim,) if counted.claim is not None else ())
