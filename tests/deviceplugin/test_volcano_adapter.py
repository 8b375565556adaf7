"""What the plugin does in Volcano's and HAMi's stead: claims, answers, marks on pods and nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceplugin.adapters.volcano import HandshakeMode, VolcanoAdapter
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
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.units import GIB, MIB
from vgpu.schemes.volcano.codec import HAMI, Volcano

ENDED = "18446744073709551615"
ROLE = VolcanoAdapter(Volcano(memory_factor=10))
HAMI_ROLE = VolcanoAdapter(Volcano(HAMI))
ROLES = {"volcano": ROLE, "hami": HAMI_ROLE}
GPUS = (gpu(B, 1), gpu(A, 0))
DEVICES = ROLE.devices(GPUS)
ON_A, ON_B = f"{A},NVIDIA,128,10:", f"{B},NVIDIA,256,20:"
IDS, TO_ALLOCATE = "volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate"
BIND_PHASE, TIME, BIND_TIME = (
    "volcano.sh/bind-phase",
    "volcano.sh/vgpu-time",
    "volcano.sh/bind-time",
)
REGISTER, HANDSHAKE = "volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
REPORTED = "Reported 2026-09-21 14:13:20 +0000 UTC"
FACTOR = "vgpu.dev/memory-factor"


def asks(name="main", adapter=ROLE, number=1, **fields):
    return container(name, {adapter.codec.key_set.number: number}, **fields)


def bound(segments=ON_A, **changes):
    """What Volcano's scheduler writes."""
    written = {
        IDS: segments,
        TO_ALLOCATE: segments,
        "volcano.sh/vgpu-node": NODE,
        TIME: "1700000000",
        BIND_TIME: "1700000000",
        BIND_PHASE: "allocating",
    }
    return {key: text for key, text in {**written, **changes}.items() if text is not None}


def claimed(object_name, adapter=ROLE, devices=DEVICES):
    return adapter.claim(object_name, NODE, devices, no_capacity(devices))


def refused(object_name, adapter=ROLE, devices=DEVICES):
    with pytest.raises(BindRefused) as info:
        claimed(object_name, adapter, devices)
    return info.value


# ---------------------------------------------------------------- devices


def test_the_gpus_are_cut_and_scaled_in_whole_units():
    adapter = VolcanoAdapter(Volcano(memory_factor=10), 5, memory_scaling=1.5, core_scaling=1.15)
    (device,) = adapter.devices([gpu(A, 0, 46068)])
    assert device.memory_bytes == 6910 * 10 * MIB  # of 69,102 MiB
    assert (device.cores_milli, device.slots) == (1150, 5)  # 1.15 is no float here
    ids = [len(list(adapter.codec.device_ids(name, (device,)))) for name in adapter.resources]
    assert ids == [5, 6910, 115]


def test_volcano_offers_three_resources_and_hami_one_the_binding_one_first():
    names = ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores")
    assert ROLE.resources == names
    assert HAMI_ROLE.resources == ("nvidia.com/gpu",)


def test_what_is_cut_by_mig_and_what_cannot_be_counted_is_not_shared():
    gpus = [
        gpu(A, 0),
        gpu("GPU-cut", 1),
        gpu("MIG-1", 0, parent="GPU-cut"),
        gpu("GPU-to-be-cut", 2, mig_mode=1.0),
        gpu("GPU-mute", 3, None),
    ]
    assert [device.uuid for device in ROLE.devices(gpus)] == [A]


def test_a_model_with_a_separator_in_its_name_does_not_break_the_register():
    (device,) = ROLE.devices([gpu(A, 0, name="L40S: 48,000")])
    marks = ROLE.node_annotations(node(), (device,), NOW)
    assert marks.annotations[REGISTER] == f"{A},10,4606,NVIDIA-L40S  48 000,true,hami-core:"


@pytest.mark.parametrize("settings", [{"memory_scaling": 0}, {"core_scaling": 1e9}])
def test_a_scaling_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match="scaling"):
        VolcanoAdapter(Volcano(), **settings)


# ---------------------------------------------------------------- claims


def test_what_the_scheduler_promised_is_what_each_container_gets():
    object_name = pod(bound(f"{ON_A};{ON_B}"), asks("x"), asks("y"))
    assert claimed(object_name) == (
        Allocation("x", (Share(A, 1280 * MIB, 100),), Phase.ASSIGNED),
        Allocation("y", (Share(B, 2560 * MIB, 200),), Phase.ASSIGNED),
    )


def test_a_container_without_gpu_in_front_takes_no_segment_of_volcanos():
    """The original gave the sidecar's name to the first container's devices."""
    object_name = pod(
        bound(f"{ON_A};{ON_B}"), container("proxy"), asks("x"), container("z"), asks("y")
    )
    assert [(one.container, one.shares[0].device) for one in claimed(object_name)] == [
        ("x", A),
        ("y", B),
    ]


def test_hami_writes_a_segment_for_the_container_without_gpu_too():
    object_name = pod(
        {HAMI.devices: f";{ON_A};", HAMI.to_allocate: f";{ON_A};"},
        container("proxy"),
        asks("x", HAMI_ROLE),
    )
    (only,) = claimed(object_name, HAMI_ROLE)
    assert (only.container, only.shares) == ("x", (Share(A, 128 * MIB, 100),))


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({}, BindRefusal.NO_CLAIM),
        ({"volcano.sh/gpu-index": "0"}, BindRefusal.NO_CLAIM),  # an older plugin's, of whole GPUs
        (bound("", **{TO_ALLOCATE: ""}), BindRefusal.NO_CLAIM),
        (bound("GPU-x,NVIDIA"), BindRefusal.MALFORMED),
        (bound(f"{ON_A};{ON_B}"), BindRefusal.MALFORMED),  # two segments for one container
        (bound(f"{A},NVIDIA,0,10:"), BindRefusal.MALFORMED),  # HAMi-core takes 0 for no limit
        (bound(**{BIND_PHASE: "failed"}), BindRefusal.CLAIM_FAILED),
        (bound(**{"volcano.sh/vgpu-node": "gpu-2"}), BindRefusal.OTHER_NODE),
        (bound("GPU-other,NVIDIA,128,10:"), BindRefusal.UNKNOWN_DEVICE),
        (bound("0,NVIDIA,128,10:"), BindRefusal.UNKNOWN_DEVICE),  # an index is no GPU's identity
        (bound(f"{A}[0-1],NVIDIA,128,10:"), BindRefusal.UNKNOWN_DEVICE),  # a MIG slot
    ],
)
def test_nothing_is_guessed(annotations, why):
    error = refused(pod(annotations, asks()))
    assert error.why is why
    assert error.pod.name == "train"


MEMORY, CORES = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"


def asks_for(**amounts):
    names = {"memory": MEMORY, "cores": CORES, "percentage": PERCENTAGE}
    limits = {names[name]: amount for name, amount in amounts.items()}
    return container("main", {ROLE.codec.key_set.number: 1, **limits})


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        ({"memory": 127, "cores": 10}, ["128", "127", MEMORY]),
        ({"cores": 9}, ["10", "9", CORES]),
    ],
)
def test_nobody_raises_the_limit_by_an_annotation(amounts, words):
    """The scheduler promises what the container asks for; whoever may annotate the pod, more."""
    error = refused(pod(bound(), asks_for(**amounts)))
    assert (error.why, error.container) == (BindRefusal.MALFORMED, "main")
    for word in words:
        assert word in error.detail


@pytest.mark.parametrize(
    "amounts",
    [
        {"memory": 128, "cores": 10},
        {"memory": 500, "cores": 100},  # less is its own affair
        {"percentage": 1},  # of which GPU, the scheduler decides
        {"cores": 0},
        {},
    ],
)
def test_what_is_not_asked_for_in_numbers_is_the_schedulers_to_choose(amounts):
    (only,) = claimed(pod(bound(), asks_for(**amounts)))
    assert only.shares == (Share(A, 1280 * MIB, 100),)


@pytest.mark.parametrize(("mib", "is_served"), [(16384, True), (0, False)])
def test_a_percentage_of_0_is_served_with_the_whole_gpu_and_never_without_a_limit(mib, is_served):
    """HAMi from 2.10 reserves the whole GPU for it, and before 0 MiB."""
    segment = f"{A},NVIDIA,{mib},0:;"
    annotations = {
        "hami.io/vgpu-devices-allocated": segment,
        "hami.io/vgpu-devices-to-allocate": segment,
        "hami.io/vgpu-node": NODE,
        "hami.io/bind-phase": "allocating",
    }
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 0}
    asking = pod(annotations, container("main", limits))
    if is_served:
        (only,) = claimed(asking, HAMI_ROLE)
        assert only.shares == (Share(A, mib * MIB, 0),)
    else:
        error = refused(asking, HAMI_ROLE)
        assert (error.why, error.final) == (BindRefusal.MALFORMED, True)
        assert "no limit" in error.detail


def test_a_refusal_names_what_stands_against_it():
    assert "gpu-2" in str(refused(pod(bound(**{"volcano.sh/vgpu-node": "gpu-2"}), asks())))
    assert A in str(refused(pod(bound("GPU-other,NVIDIA,128,10:"), asks())))
    assert "volcano.sh/vgpu-ids-new" in str(refused(pod({}, asks())))


@pytest.mark.parametrize("style", ROLES)
@given(data=st.data())
def test_what_a_scheduler_writes_is_what_is_claimed(style, data):
    adapter = ROLES[style]
    unit = adapter.codec.unit_bytes
    share = st.builds(
        Share,
        st.sampled_from([A, B]),
        st.integers(1, 4000).map(lambda units: units * unit),
        st.integers(0, 100).map(lambda percent: percent * 10),
    )
    shares = data.draw(st.lists(st.lists(share, min_size=1, max_size=3), min_size=1, max_size=3))
    plain = data.draw(st.lists(st.booleans(), min_size=len(shares), max_size=len(shares)))
    containers, allocations = [], []
    for number, (each, with_proxy) in enumerate(zip(shares, plain, strict=True)):
        if with_proxy:
            containers.append(container(f"proxy-{number}"))
        containers.append(asks(f"c{number}", adapter, len(each)))
        allocations.append(Allocation(f"c{number}", tuple(each), Phase.ASSUMED))
    names = tuple(one.container for one in allocations)
    claim = Claim(
        Scheme.VOLCANO, PodRef("u", "ml", "p"), NODE, tuple(allocations), 1.0, None, names
    )
    apps = [one.name for one in containers]
    written = adapter.codec.annotations(claim, by_name(DEVICES), apps)
    claims = claimed(pod(written, *containers), adapter)
    assert claims == tuple(replace(each, phase=Phase.ASSIGNED) for each in allocations)


# ---------------------------------------------------------------- answers


def edits(object_name, adapter=ROLE, name="f00d"):
    (only,) = claimed(object_name, adapter)
    return adapter.edits(object_name, only, name, by_name(DEVICES))


def test_a_container_gets_the_same_edits_as_from_the_original():
    given_ = edits(pod(bound(), asks(), uid="u-1"))
    assert given_.env == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1280m",
        "CUDA_DEVICE_SM_LIMIT": "10",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/f00d.cache",
    }
    assert [(mount.host, mount.container, mount.read_only) for mount in given_.mounts] == [
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", True),
        ("/usr/local/vgpu/vgpu/containers/u-1_main", "/tmp/vgpu", False),
        ("/tmp/vgpulock", "/tmp/vgpulock", False),
        ("/usr/local/vgpu/ld.so.preload", "/etc/ld.so.preload", True),
    ]


@pytest.mark.parametrize(
    ("value", "preloaded"),
    [("true", False), ("1", False), ("True", False), ("false", True), ("", True), ("yes", True)],
)
def test_a_container_that_disables_control_is_not_preloaded(value, preloaded):
    object_name = pod(bound(), asks(env={"CUDA_DISABLE_CONTROL": value}))
    targets = {mount.container for mount in edits(object_name).mounts}
    assert ("/etc/ld.so.preload" in targets) is preloaded
    assert "/usr/local/vgpu/libvgpu.so" in targets


def test_the_folder_is_of_the_uid_that_the_node_knows_a_static_pod_by():
    annotations = bound(**{"kubernetes.io/config.mirror": "abc123"})
    given_ = edits(pod(annotations, asks(), uid="u-1"))
    assert given_.mounts[1].host.endswith("/abc123_main")


@pytest.mark.parametrize(("scaling", "oversubscribed"), [(1.0, False), (2.0, True)])
def test_memory_that_the_gpus_do_not_have_comes_from_the_host(scaling, oversubscribed):
    adapter = VolcanoAdapter(Volcano(memory_factor=10), memory_scaling=scaling)
    assert ("CUDA_OVERSUBSCRIBE" in edits(pod(bound(), asks()), adapter).env) is oversubscribed


def test_all_that_the_library_reads_may_come_late():
    env = edits(pod(bound(), asks())).env
    assert ROLE.late_env(env) == {
        name: value for name, value in env.items() if name.startswith("CUDA_")
    }
    assert len(ROLE.late_env(env)) == len(env) - 1


@pytest.mark.parametrize("adapter", ROLES.values(), ids=ROLES)
def test_the_folders_are_those_that_are_mounted_and_anybody_may_write_there(adapter):
    key_set = adapter.codec.key_set
    annotations = {key_set.devices: ON_A, key_set.to_allocate: ON_A}
    mounts = edits(pod(annotations, asks("main", adapter), uid="u-1"), adapter).mounts
    folders = adapter.folders(PodRef("u-1", "ml", "train"), "main")
    assert [each.path for each in folders] == [m.host for m in mounts if not m.read_only]
    assert {each.mode for each in folders} == {0o777}


# ---------------------------------------------------------------- marks on pods


def marks(object_name, done=(), adapter=ROLE, **fields):
    admitted_pod = admitted_pod_of(object_name, claimed(object_name, adapter), done, **fields)
    return adapter.pod_annotations(object_name, admitted_pod, by_name(DEVICES), NOW)


def two(**changes):
    return pod(bound(f"{ON_A};{ON_B}", **changes), asks("x"), asks("y"))


def test_a_bound_container_is_struck_and_the_last_one_ends_it():
    object_name = two()
    assert marks(object_name) == {}
    assert marks(object_name, ["x"]) == {TO_ALLOCATE: f";{ON_B}"}
    assert marks(object_name, ["x", "y"]) == {TO_ALLOCATE: ";", BIND_PHASE: "success", TIME: ENDED}


def test_hami_keeps_its_time_and_its_segments():
    text = f"{ON_A};{ON_B};"
    annotations = {HAMI.devices: text, HAMI.to_allocate: text, HAMI.time: "1700000000"}
    object_name = pod(annotations, asks("x", HAMI_ROLE), asks("y", HAMI_ROLE))
    assert marks(object_name, ["x"], HAMI_ROLE) == {HAMI.to_allocate: f";{ON_B};"}
    assert marks(object_name, ["x", "y"], HAMI_ROLE) == {
        HAMI.to_allocate: ";;",
        HAMI.bind_phase: "success",
    }


def test_containers_that_get_the_same_are_struck_in_their_order():
    object_name = pod(bound(f"{ON_A};{ON_A};{ON_A}"), asks("x"), asks("y"), asks("z"))
    assert marks(object_name, ["x"]) == {TO_ALLOCATE: f";{ON_A};{ON_A}"}
    assert marks(object_name, ["x", "y"]) == {TO_ALLOCATE: f";;{ON_A}"}


def test_what_another_plugin_has_struck_is_not_written_again():
    object_name = two(**{TO_ALLOCATE: f";{ON_B}"})
    assert marks(object_name) == {}
    assert marks(object_name, ["x"]) == {}


def test_other_vendors_entries_stay_to_be_allocated():
    ascend = "Ascend-1,Ascend310,1,0:"
    object_name = pod(bound(f"{ON_A}{ascend}"), asks())
    assert marks(object_name, ["main"])[TO_ALLOCATE] == ascend


def test_a_pod_of_another_plugin_and_one_whose_annotations_are_gone_are_skipped():
    object_name = two()
    assert marks(object_name, ["x", "y"], foreign=True) == {}
    admitted_pod = admitted_pod_of(object_name, claimed(object_name), ["x", "y"])
    assert ROLE.pod_annotations(replace(object_name, annotations={}), admitted_pod, {}, NOW) == {}


def test_a_copy_that_nobody_can_read_is_ended_when_all_are_bound():
    object_name = two()
    admitted_pod = admitted_pod_of(object_name, claimed(object_name), ["x"])
    broken = with_marks(object_name, {TO_ALLOCATE: "?,NVIDIA;;"})
    assert ROLE.pod_annotations(broken, admitted_pod, {}, NOW) == {}
    admitted_pod = admitted_pod_of(object_name, claimed(object_name), ["x", "y"])
    assert ROLE.pod_annotations(broken, admitted_pod, {}, NOW)[TO_ALLOCATE] == ";;"


@pytest.mark.parametrize("style", ROLES)
@given(
    wants=st.lists(st.sampled_from([ON_A, ON_B, ON_A + ON_B]), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_in_any_order_marks_are_written_once_and_read_as_what_is_so(style, wants, order):
    adapter = ROLES[style]
    key_set = adapter.codec.key_set
    text = ";".join(wants)
    object_name = pod(
        {key_set.devices: text, key_set.to_allocate: text, key_set.bind_phase: "allocating"},
        *(asks(f"c{n}", adapter, want.count(":")) for n, want in enumerate(wants)),
    )
    allocations = claimed(object_name, adapter)
    names = [each.container for each in allocations]
    order.shuffle(names)
    for count in range(1, len(names) + 1):
        admitted_pod = admitted_pod_of(object_name, allocations, names[:count])
        written = adapter.pod_annotations(object_name, admitted_pod, {}, NOW)
        object_name = with_marks(object_name, written)
        assert adapter.pod_annotations(object_name, admitted_pod, {}, NOW + 60) == {}
        left = [part for part in object_name.annotations[key_set.to_allocate].split(";") if part]
        assert sorted(left) == sorted(wants[int(name[1:])] for name in names[count:])
    claim = adapter.codec.claim(object_name)
    assert not claim.unserved
    assert not claim.remarks
    assert {each.phase for each in claim.allocations} == {Phase.ASSIGNED}


@pytest.mark.parametrize("adapter", ROLES.values(), ids=ROLES)
def test_a_failed_pod_is_no_candidate_any_more(adapter):
    key_set = adapter.codec.key_set
    object_name = pod(
        {key_set.devices: ON_A, key_set.to_allocate: ON_A, key_set.time: "1"}, asks("main", adapter)
    )
    written = adapter.failure_annotations(object_name)
    time = {key_set.time: ENDED} if adapter is ROLE else {}
    assert written == {key_set.to_allocate: "", key_set.bind_phase: "failed", **time}
    failed = with_marks(object_name, written)
    assert adapter.failure_annotations(failed) == {}
    assert adapter.codec.claim(failed).failed
    assert refused(failed, adapter).why is BindRefusal.CLAIM_FAILED


def test_what_was_never_a_candidate_is_not_marked_as_failed():
    assert ROLE.failure_annotations(pod({}, asks())) == {}


# ---------------------------------------------------------------- marks on the node


def test_the_gpus_are_registered_by_index_with_their_health():
    ill = tuple(replace(each, healthy=each.uuid != B) for each in reversed(DEVICES))
    written = ROLE.node_annotations(node(), ill, NOW).annotations
    assert written == {
        REGISTER: f"{A},10,4606,NVIDIA-NVIDIA L40S,true,hami-core:"
        f"{B},10,4606,NVIDIA-NVIDIA L40S,false,hami-core:",
        FACTOR: "10",
        HANDSHAKE: REPORTED,
    }
    assert ROLE.node_annotations(node(written), ill, NOW + 60).annotations == {}


def test_hami_registers_json_and_publishes_no_unit():
    devices = HAMI_ROLE.devices(GPUS)
    written = HAMI_ROLE.node_annotations(node(), devices, NOW).annotations
    assert list(written) == ["hami.io/node-nvidia-register", "hami.io/node-handshake"]
    assert HAMI_ROLE.codec.devices(node(written)) == devices
    assert HAMI_ROLE.node_annotations(node(written), devices, NOW).annotations == {}


def sign(signs, text, now=NOW, adapter=ROLE):
    """The annotations in the answer, by key."""
    key = adapter.codec.key_set.handshake[0]
    annotations = {} if text is None else {key: text}
    found = (
        replace(adapter, handshake=signs)
        .node_annotations(node(annotations), DEVICES, now)
        .annotations
    )
    return found.get(key)


LATE = NOW + 30


@pytest.mark.parametrize(
    ("text", "auto", "on", "later"),
    [
        (None, REPORTED, REPORTED, REPORTED),
        ("Requesting_2026.09.21 14:13:00", REPORTED, REPORTED, REPORTED),
        ("Deleted_2026.09.21 14:13:00", REPORTED, REPORTED, REPORTED),
        (REPORTED, None, None, REPORTED),
        (f"{REPORTED} m=+3.5", None, None, REPORTED),
        ("Reported whenever", None, REPORTED, REPORTED),
        ("nonsense", None, REPORTED, REPORTED),
    ],
)
def test_a_handshake_is_written_when_it_is_requested_or_due(text, auto, on, later):
    assert sign(HandshakeMode.OFF, text) is None
    assert sign(HandshakeMode.AUTO, text) == auto
    assert sign(HandshakeMode.ON, text) == on
    in_half_a_minute = later.replace("14:13:20", "14:13:50")
    assert sign(HandshakeMode.ON, text, LATE) == in_half_a_minute


def test_an_older_schedulers_handshake_is_answered_under_its_own_key():
    older = {"volcano.sh/node-handshake": "Requesting_2026.09.21 14:13:00"}
    assert (
        ROLE.node_annotations(node(older), DEVICES, NOW)
        .annotations["volcano.sh/node-handshake"]
        .startswith("Reported")
    )


@pytest.mark.parametrize("text", [None, "Requesting_2026-09-21 14:13:00"])
@pytest.mark.parametrize("adapter", ROLES.values(), ids=ROLES)
def test_an_answered_handshake_does_not_flap(adapter, text):
    asked = {adapter.codec.key_set.handshake[0]: text} if text else {}
    there = node({**asked, **adapter.node_annotations(node(asked), DEVICES, NOW).annotations})
    assert adapter.node_annotations(there, DEVICES, NOW + 3600).annotations == {}


# ---------------------------------------------------------------- the lock

LOCK = "hamivgpu"
AT = "2026-09-21T14:13:20Z"  # NOW


def waiting(name, at, **fields):
    """A pod that was bound at a time, seconds after the lock."""
    stamp = None if at is None else str(int(NOW) + at)
    return pod(bound(**{BIND_TIME: stamp}), asks(), name=name, **fields)


def released(pods, served, text=AT, key=LOCK):
    uids = {f"uid-of-{name}" for name in served}
    return ROLE.lock_to_release(node({key: text}), pods, uids)


def test_the_lock_is_its_owners_and_goes_when_that_is_served():
    owner = waiting("a", 0)
    assert released([owner], []) is None
    assert released([owner], ["a"]) == LOCK
    assert ROLE.lock_to_release(node(), [owner], {"uid-of-a"}) is None


@pytest.mark.parametrize(
    ("pods", "served"),
    [
        ([waiting("a", -1)], ["a"]),  # it was bound before the lock was taken
        ([waiting("a", 1), waiting("b", 0)], ["a"]),  # another's time follows more closely
        ([waiting("a", 0), waiting("b", 0)], ["a"]),  # both may be meant
        ([waiting("a", 0), waiting("b", 40)], ["a"]),  # and so may this one, of a slow scheduler
        ([waiting("a", 0), waiting("b", None)], ["a"]),  # nobody knows when this one was bound
        ([waiting("a", None)], ["a"]),
        ([waiting("a", 3600)], ["a"]),  # the lock had expired by then, and is another's
        ([waiting("b", 0, phase="Failed"), waiting("a", 1)], ["a"]),  # the dead owner's
        ([], ["a"]),
    ],
)
def test_a_lock_that_may_be_anothers_stays(pods, served):
    assert released(pods, served) is None


@pytest.mark.parametrize(
    "other",
    [
        waiting("b", -5),  # it waits for something else
        waiting("b", 3, phase="Succeeded"),
        waiting("b", 3600),  # the lock had expired by then
        pod({}, container(), name="b"),  # it has no GPU
        pod({BIND_TIME: str(int(NOW))}, container(), name="b"),  # neither has this one
        pod(bound(**{BIND_TIME: str(int(NOW))}), container(), name="b"),
        pod({BIND_TIME: str(int(NOW))}, asks(), name="b"),  # it has been promised none
    ],
)
def test_who_cannot_be_meant_does_not_hold_the_lock(other):
    assert released([waiting("a", 0), other], ["a"]) == LOCK


def test_a_lock_that_nobody_can_read_is_never_released():
    for text in ("", "yesterday", "2026-09-21 14:13:20"):
        assert released([waiting("a", 0)], ["a"], text) is None


def test_the_older_volcanos_lock_is_released_under_its_own_key():
    assert released([waiting("a", 0)], ["a"], key="vgpu4pd") == "vgpu4pd"


def hami_released(text, pods, served):
    return HAMI_ROLE.lock_to_release(node({"hami.io/mutex.lock": text}), pods, served)


def hami_pod(name, at=0, **fields):
    annotations = {HAMI.devices: ON_A, HAMI.bind_time: str(int(NOW) + at)}
    return pod(annotations, asks("main", HAMI_ROLE), name=name, **fields)


def test_hamis_lock_names_its_owner():
    pods = [hami_pod("a"), hami_pod("b")]
    mine = f"{AT},ml,a"
    assert hami_released(mine, pods, {"uid-of-a"}) == "hami.io/mutex.lock"
    assert hami_released(mine, pods, {"uid-of-b"}) is None
    assert hami_released(mine, [hami_pod("b")], {"uid-of-a", "uid-of-b"}) is None  # it is gone
    assert hami_released(f"{AT},other,a", pods, {"uid-of-a"}) is None
    for unreadable in ("soon,ml,a", AT, f"{AT},ml", f"{AT},ml,a,x", f"{AT},,a"):
        assert hami_released(unreadable, pods, {"uid-of-a", "uid-of-b"}) is None


def test_hamis_scheduler_stamps_the_pod_a_moment_before_it_has_the_lock():
    mine = f"{AT},ml,a"
    assert hami_released(mine, [hami_pod("a", -3)], {"uid-of-a"}) == "hami.io/mutex.lock"


def test_the_lock_of_a_pods_successor_is_not_released_for_the_pod_of_before():
    """A StatefulSet's pod has the name of the one before, which the watch may still show."""
    before = hami_pod("web-0", -3600, uid="old")
    assert hami_released(f"{AT},ml,web-0", [before], {"old"}) is None


def test_a_gigabyte_has_the_size_in_the_table():
    object_name = pod(bound(f"{A},NVIDIA,1024,0:"), asks())
    (only,) = claimed(object_name, VolcanoAdapter(Volcano(memory_factor=1)))
    assert only.shares == (Share(A, GIB, 0),)


def test_init_containers_have_nothing_of_their_own():
    object_name = pod(bound(), asks("x"), asks("setup", kind=ContainerKind.INIT))
    assert [each.container for each in claimed(object_name)] == ["x"]
    assert marks(object_name, ["x"])[BIND_PHASE] == "success"
