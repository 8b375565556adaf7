"""What the plugin does in gpushare's stead: claims, answers, marks on pods and the node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.health.device_health import Health, seen
from deviceplugin.health.rules import HealthRules
from deviceplugin.reasons import BindRefusal, BindRefused
from tests.support.plugin_pods import (
    NODE,
    NOW,
    A,
    B,
    admitted_pod_of,
    by_name,
    container,
    gpu,
    no_capacity,
    node,
    pod,
    with_marks,
)
from vgpu.model.allocation import Allocation, Claim, Share
from vgpu.model.facts import GpuSample
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.units import GIB, MIB
from vgpu.schemes.gpushare.codec import Gpushare

ROLE = GpushareAdapter()
DEVICES = ROLE.devices([gpu(A, 0, 15 * 1024 + 500), gpu(B, 1, 44 * 1024)])
ONE = DEVICES[:1]
INDEX, TOTAL, FLAG, TIME = (
    f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "POD", "ASSIGNED", "ASSUME_TIME")
)
ALLOCATION = "scheduler.framework.gpushare.allocation"
ACK_FLAG, ACK_TIME = (
    f"scheduler.framework.gpushare.{name}" for name in ("assigned", "assume-time")
)
NANOSECONDS = "1790000000000000000"  # NOW


def asks(units=4, name="main", **fields):
    return container(name, {"aliyun.com/gpu-mem": units}, **fields)


def assumed(gpu_index="1", total="4", **changes):
    """What the extender writes."""
    written = {INDEX: gpu_index, TOTAL: total, FLAG: "false", TIME: "1700000000000000000"}
    return {key: text for key, text in {**written, **changes}.items() if text is not None}


def claimed(object_name, devices=DEVICES, adapter=ROLE):
    return adapter.claim(object_name, NODE, devices, no_capacity(devices))


def refused(object_name, devices=DEVICES):
    with pytest.raises(BindRefused) as info:
        claimed(object_name, devices)
    return info.value


# ---------------------------------------------------------------- devices


def test_every_gpu_has_the_units_of_its_own_memory():
    assert [device.memory_bytes for device in DEVICES] == [15 * GIB, 44 * GIB]
    ids = list(ROLE.codec.device_ids(ROLE.resources[0], DEVICES))
    assert len(ids) == 15 + 44
    assert {ids[0], ids[-1]} == {f"{A}-_-0", f"{B}-_-43"}


def test_gpus_are_numbered_as_the_extender_counts_them():
    """It knows only how many there are: a GPU that is cut by MIG is none of its."""
    devices = ROLE.devices([gpu("GPU-mig", 0, mig_mode=1.0), gpu(B, 3), gpu(A, 1)])
    assert [(device.uuid, device.index) for device in devices] == [(A, 0), (B, 1)]


def test_no_gpu_takes_the_number_of_one_that_is_lost():
    """The driver moves the later ones up; pods were promised GPUs by their numbers before."""
    a, b, c = "GPU-a", "GPU-b", "GPU-c"

    def sampled(health, *uuids):
        gpus = tuple(gpu(uuid, index) for index, uuid in enumerate(uuids))
        return seen(health, GpuSample(gpus), 0.0, HealthRules())

    health = sampled(Health.at_start(), c, a, b)
    for uuids in ((a, b), (a, b, c), ("GPU-0", a, b)):
        health = sampled(health, *uuids)
        numbers = {device.uuid: device.index for device in ROLE.devices(health.devices)}
        assert numbers == {c: 0, a: 1, b: 2} | ({"GPU-0": 3} if "GPU-0" in uuids else {})


# ---------------------------------------------------------------- claims


def test_the_extenders_gpu_is_found_by_its_index():
    object_name = pod(assumed(total="6"), asks(4, "x"), container("plain"), asks(2, "y"))
    assert claimed(object_name) == (
        Allocation("x", (Share(B, 4 * GIB),), Phase.ASSIGNED),
        Allocation("y", (Share(B, 2 * GIB),), Phase.ASSIGNED),
    )


def test_acks_allocation_names_gpus_by_container():
    annotations = {ALLOCATION: '{"1":{"0":3,"1":3}}', ACK_FLAG: "false", ACK_TIME: "1"}
    labels = {"aliyun.com/gpu-count": "2"}
    object_name = pod(annotations, container("plain"), asks(6, "x"), labels=labels)
    assert claimed(object_name) == (
        Allocation("x", (Share(A, 3 * GIB), Share(B, 3 * GIB)), Phase.ASSIGNED),
    )


def test_init_containers_use_their_pods_gpu_and_have_none_of_their_own():
    object_name = pod(assumed(), asks(4, "x"), asks(4, "setup", kind=ContainerKind.INIT))
    assert [each.container for each in claimed(object_name)] == ["x"]


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({}, BindRefusal.NO_CLAIM),
        (assumed("x"), BindRefusal.MALFORMED),
        (assumed(None), BindRefusal.MALFORMED),
        (assumed("2"), BindRefusal.UNKNOWN_DEVICE),
        ({ALLOCATION: '{"0":{"1":3}}'}, BindRefusal.OTHER_COUNT),  # it asks for 4
        ({ALLOCATION: '{"0":{"0":4,"1":4}}'}, BindRefusal.OTHER_COUNT),
        ({ALLOCATION: "[]"}, BindRefusal.MALFORMED),
    ],
)
def test_nothing_is_guessed(annotations, why):
    assert refused(pod(annotations, asks())).why is why


def test_a_pod_that_the_extender_has_not_seen_gets_the_likely_cause():
    message = str(refused(pod({}, asks())))
    assert "kube-scheduler does not ask the gpushare extender" in message
    assert INDEX in message


def test_on_a_node_with_one_gpu_no_choice_is_a_guess():
    object_name = pod({}, asks(4, "x"), asks(2, "y"))
    assert claimed(object_name, ONE) == (
        Allocation("x", (Share(A, 4 * GIB),), Phase.ASSIGNED),
        Allocation("y", (Share(A, 2 * GIB),), Phase.ASSIGNED),
    )
    assert refused(object_name, ()).why is BindRefusal.NO_CLAIM


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    st.sampled_from([0, 1]),
    st.sampled_from([GIB, 256 * MIB, MIB]),
)
def test_what_the_extender_writes_is_what_is_claimed(units, gpu_index, unit):
    adapter = GpushareAdapter(Gpushare(unit))
    devices = adapter.devices([gpu(A, 0), gpu(B, 1)])
    containers = [asks(each, f"c{n}") for n, each in enumerate(units)]
    allocations = tuple(
        Allocation(f"c{n}", (Share(devices[gpu_index].uuid, each * unit),), Phase.ASSUMED)
        for n, each in enumerate(units)
        if each
    )
    claim = Claim(Scheme.GPUSHARE, PodRef("u", "ml", "p"), "", allocations, NOW)
    written = adapter.codec.annotations(claim, by_name(devices))
    claims = claimed(pod(written, *containers), devices, adapter)
    assert claims == tuple(replace(each, phase=Phase.ASSIGNED) for each in allocations)


# ---------------------------------------------------------------- answers


def edits(object_name, adapter=ROLE, devices=DEVICES):
    (only,) = claimed(object_name, devices, adapter)
    return adapter.edits(object_name, only, "f00d", by_name(devices))


def test_a_container_gets_its_share_and_its_gpu_by_uuid():
    given_ = edits(pod(assumed(), asks()))
    assert given_.env == {
        "NVIDIA_VISIBLE_DEVICES": B,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "44",
    }
    assert not given_.mounts
    assert ROLE.late_env(given_.env) == {}
    assert ROLE.folders(PodRef("u", "n", "p"), "c") == ()


@pytest.mark.parametrize(("label", "disabled"), [("true", True), ("false", False), (None, False)])
def test_the_nodes_label_keeps_cgpu_out(label, disabled):
    labels = {} if label is None else {"cgpu.disable.isolation": label}
    adapter = ROLE.on(replace(node(), labels=labels))
    assert (edits(pod(assumed(), asks()), adapter).env.get("CGPU_DISABLE") == "true") is disabled


def test_the_originals_refusal_is_there_for_who_asks_for_it():
    assert ROLE.refusal(4, DEVICES) == {
        "NVIDIA_VISIBLE_DEVICES": "no-gpu-has-4GiB-to-run",
        "ALIYUN_COM_GPU_MEM_IDX": "-1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    assert ROLE.refusal(4, ())["ALIYUN_COM_GPU_MEM_DEV"] == "0"


# ---------------------------------------------------------------- marks


def marks(object_name, done, devices=DEVICES, now=NOW, **fields):
    admitted_pod = admitted_pod_of(object_name, claimed(object_name, devices), done, **fields)
    return ROLE.pod_annotations(object_name, admitted_pod, by_name(devices), now)


def test_a_pod_is_assigned_when_all_its_containers_are_bound_and_not_again():
    object_name = pod(assumed(total="6"), asks(4, "x"), asks(2, "y"))
    assert marks(object_name, ["x"]) == {}
    written = marks(object_name, ["x", "y"])
    assert written == {FLAG: "true", TIME: NANOSECONDS}
    assert marks(with_marks(object_name, written), ["x", "y"], now=NOW + 60) == {}
    assert ROLE.codec.claim(with_marks(object_name, written)).assigned_at == NOW


def test_each_form_is_assigned_under_its_own_keys():
    ack = {ALLOCATION: '{"0":{"1":4}}', ACK_FLAG: "false", ACK_TIME: "1"}
    done = ["main"]
    assert marks(pod(ack, asks()), done) == {ACK_FLAG: "true", ACK_TIME: NANOSECONDS}
    both = pod({**assumed(), **ack}, asks())
    written = {FLAG: "true", TIME: NANOSECONDS, ACK_FLAG: "true", ACK_TIME: NANOSECONDS}
    assert marks(both, done) == written
    mixed = pod({ALLOCATION: '{"0":{"1":4}}', FLAG: "false"}, asks())
    assert marks(with_marks(mixed, marks(mixed, done)), done, now=NOW + 60) == {}


def test_a_gpu_that_nobody_wrote_down_is_written_as_the_extender_does():
    object_name = pod({}, asks(4, "x"), asks(2, "y"))
    assert marks(object_name, ["x"], ONE) == {}
    written = marks(object_name, ["x", "y"], ONE)
    assert written == {
        INDEX: "0",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        TOTAL: "6",
        FLAG: "true",
        TIME: NANOSECONDS,
    }
    assert marks(with_marks(object_name, written), ["x", "y"], ONE, NOW + 60) == {}


def test_a_gpu_that_is_lost_cannot_be_written():
    object_name = pod({}, asks())
    admitted_pod = admitted_pod_of(object_name, claimed(object_name, ONE), ["main"])
    assert ROLE.pod_annotations(object_name, admitted_pod, {}, NOW) == {}


def test_a_pod_of_another_plugin_is_skipped():
    assert marks(pod(assumed(), asks()), ["main"], foreign=True) == {}


@pytest.mark.parametrize("annotations", [assumed(), {ALLOCATION: "{}", ACK_FLAG: "false"}])
def test_a_failed_pod_is_skipped_and_its_gpu_still_reported(annotations):
    object_name = pod(annotations, asks())
    written = ROLE.failure_annotations(object_name)
    assert set(written.values()) == {None}
    after = with_marks(object_name, written)
    assert not {FLAG, ACK_FLAG} & after.annotations.keys()
    assert {INDEX, ALLOCATION} & after.annotations.keys()
    assert ROLE.failure_annotations(after) == {}


def test_what_was_never_a_candidate_is_not_touched():
    assert ROLE.failure_annotations(pod({}, asks())) == {}


def test_the_gpus_are_counted_on_the_node():
    count = {"aliyun.com/gpu-count": 2}
    assert ROLE.node_annotations(node(), DEVICES, NOW).capacity == count
    assert ROLE.node_annotations(node(capacity=count), DEVICES, NOW).capacity == count
    there = node(capacity=count, allocatable=count)
    assert ROLE.node_annotations(there, DEVICES, NOW).capacity == {}
    assert ROLE.node_annotations(there, ONE, NOW).capacity == {"aliyun.com/gpu-count": 1}


def test_unhealthy_gpus_are_published_and_recovered():
    ill = (DEVICES[0], replace(DEVICES[1], healthy=False))
    assert ROLE.node_annotations(node(), ill, NOW).unhealthy == {"gpus": "1"}
    assert ROLE.node_annotations(node(), DEVICES, NOW).unhealthy == {}


def test_there_is_no_lock_and_no_annotation_of_the_node():
    assert ROLE.lock_to_release(node({"hamivgpu": "x"}), [], ()) is None
    assert ROLE.node_annotations(node(), DEVICES, NOW).annotations == {}
