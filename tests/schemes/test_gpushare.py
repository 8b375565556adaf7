"""gpushare's codec: requests, annotations, and the container edits of an allocation."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import Container, ContainerState, Node, Pod, Status
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.gpushare.annotations import (
    ACK_ASSIGNED,
    ACK_CHANGED_AT,
    ALLOCATION,
    ASSIGNED,
    CHANGED_AT,
    GPU_TOTAL,
    INDEX,
    POD_TOTAL,
)
from vgpu.schemes.gpushare.codec import ANNOTATIONS, Gpushare
from vgpu.schemes.gpushare.node import NAMES

CODEC: SchemeCodec = Gpushare()
POD = PodRef("uid-1", "ml", "train-0")
SECONDS = 1_700_000_000.25
NANOSECONDS = "1700000000250000000"


def asking(*units, kind=ContainerKind.APP):
    return tuple(
        Container(f"c{number}", {NAMES.memory: amount}, kind) for number, amount in enumerate(units)
    )


def pod(annotations=None, *, containers=None, **more):
    containers = asking(3) if containers is None else containers
    return Pod(POD, annotations=annotations or {}, containers=containers, node="n1", **more)


def bound(**changes):
    """The extender's annotations for 3 units on GPU 1."""
    return {
        INDEX: "1",
        GPU_TOTAL: "15",
        POD_TOTAL: "3",
        ASSIGNED: "false",
        CHANGED_AT: NANOSECONDS,
    } | changes


def shares(claim):
    """Container -> (GPU, GiB)."""
    return {
        allocation.container: [
            (share.device, share.memory_bytes // GIB) for share in allocation.shares
        ]
        for allocation in claim.allocations
    }


def devices(count=4, gib=15, uuids=True):
    made = [
        Device(uuid=f"GPU-{index:08x}" if uuids else "", index=index, memory_bytes=gib * GIB)
        for index in range(count)
    ]
    return {name: device for device in made for name in device.names}


# ---------------------------------------------------------------- requests


def test_a_container_asks_for_memory_of_one_gpu():
    asked = Gpushare(memory_unit=MIB).requests(pod(containers=asking(8138)))
    assert asked == (Request("c0", 1, memory_bytes=8138 * MIB),)


def test_containers_that_ask_for_nothing_are_left_out():
    containers = (*asking(2, 0), Container("plain"), *asking(1, kind=ContainerKind.INIT))
    assert CODEC.requests(pod(containers=containers)) == (
        Request("c0", 1, memory_bytes=2 * GIB),
        Request("c0", 1, memory_bytes=GIB, kind=ContainerKind.INIT),
    )


def test_memory_of_several_gpus_is_asked_for_with_a_label():
    assert CODEC.requests(pod(containers=asking(8), labels={NAMES.count: "2"})) == (
        Request("c0", 2, memory_bytes=4 * GIB),
    )


@pytest.mark.parametrize(
    ("count", "text"), [("3", "3"), ("x", "x"), ("-1", "-1"), ("9999", "9999")]
)
def test_gpus_that_do_not_divide_the_memory_are_refused(count, text):
    with pytest.raises(ClaimError) as refused:
        CODEC.requests(pod(containers=asking(8), labels={NAMES.count: count}))
    assert (refused.value.object_name, refused.value.key) == ("ml/train-0", NAMES.count)
    assert refused.value.text == text


@pytest.mark.parametrize(
    "container",
    [
        Container("c0", broken={NAMES.memory: "1500m"}),
        Container("c0", {NAMES.memory: -1}),
        Container("c0", {NAMES.memory: 10**30}),
    ],
)
def test_a_request_that_is_no_number_of_units_is_refused(container):
    for read in (CODEC.requests, CODEC.claim):
        with pytest.raises(ClaimError) as refused:
            read(pod(bound(), containers=(container,)))
        assert (refused.value.object_name, refused.value.key) == ("ml/train-0", NAMES.memory)


def test_a_unit_of_nothing_is_no_setting():
    with pytest.raises(ValueError, match="0 bytes"):
        Gpushare(memory_unit=0)


# ---------------------------------------------------------------- claims: the extender's form


def test_a_bound_pod_is_assumed_on_its_gpu():
    assert CODEC.claim(pod(bound())) == Claim(
        Scheme.GPUSHARE,
        POD,
        "",
        (Allocation("c0", (Share("1", 3 * GIB),), Phase.ASSUMED),),
        assumed_at=SECONDS,
    )


def test_the_plugin_overwrites_when_it_was_assumed_with_when_it_was_assigned():
    claim = CODEC.claim(pod(bound(**{ASSIGNED: "true"})))
    assert claim.allocations[0].phase is Phase.ASSIGNED
    assert (claim.assumed_at, claim.assigned_at) == (None, SECONDS)


def test_every_container_has_the_memory_of_its_own_limits():
    claim = CODEC.claim(pod(bound(), containers=(*asking(2, 0, 1), Container("plain"))))
    assert shares(claim) == {"c0": [("1", 2)], "c2": [("1", 1)]}
    assert claim.remarks == ()


def test_the_unit_is_a_setting():
    claim = Gpushare(memory_unit=256 * MIB).claim(pod(bound()))
    assert claim.allocations[0].shares == (Share("1", 768 * MIB),)


def test_sidecars_hold_memory_beside_the_others_and_init_containers_do_not():
    containers = (
        Container("app", {NAMES.memory: 3}),
        Container("init", {NAMES.memory: 5}, ContainerKind.INIT),
        Container("side", {NAMES.memory: 1}, ContainerKind.SIDECAR),
        Container("debug", {NAMES.memory: 1}, ContainerKind.EPHEMERAL),
    )
    claim = CODEC.claim(pod(bound(**{POD_TOTAL: "4"}), containers=containers))
    assert shares(claim) == {"app": [("1", 3)], "side": [("1", 1)]}
    assert claim.remarks == ()


def test_a_pod_without_annotations_has_no_claim():
    assert CODEC.claim(pod({"volcano.sh/vgpu-node": "n1"})) is None


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({POD_TOTAL: "4"}, f"{POD_TOTAL}: the limits add up to 3: '4'"),
        ({POD_TOTAL: "x"}, f"{POD_TOTAL}: the limits add up to 3: 'x'"),
        ({GPU_TOTAL: "-1"}, f"{GPU_TOTAL}: not a number of units: '-1'"),
        ({ASSIGNED: "maybe"}, f"{ASSIGNED}: neither true nor false: 'maybe'"),
        ({CHANGED_AT: "now"}, f"{CHANGED_AT}: not a time in nanoseconds: 'now'"),
        ({CHANGED_AT: "9" * 20}, f"{CHANGED_AT}: not a time in nanoseconds: '{'9' * 20}'"),
    ],
)
def test_what_is_wrong_beside_a_known_gpu_is_a_doubt(changes, remark):
    claim = CODEC.claim(pod(bound(**changes)))
    assert shares(claim) == {"c0": [("1", 3)]}
    assert claim.remarks == (remark,)


@pytest.mark.parametrize("key", [ASSIGNED, CHANGED_AT])
def test_a_claim_that_the_original_plugin_will_skip_has_a_remark(key):
    annotations = bound()
    del annotations[key]
    claim = CODEC.claim(pod(annotations))
    assert claim.allocations[0].phase is Phase.ASSUMED
    assert claim.remarks == (f"{key}: missing, so the original plugin passes over the pod: ''",)


def test_totals_that_are_missing_are_not_missed():
    annotations = bound()
    del annotations[POD_TOTAL], annotations[GPU_TOTAL]
    assert CODEC.claim(pod(annotations)) == CODEC.claim(pod(bound()))


@pytest.mark.parametrize("text", ["", "-1", "x", "1.0", "01", "+1", "²", "1024", "9" * 10_000])
def test_an_index_that_names_no_gpu_is_refused(text):
    with pytest.raises(ClaimError) as refused:
        CODEC.claim(pod(bound(**{INDEX: text})))
    assert refused.value.object_name == "ml/train-0"
    assert (refused.value.key, refused.value.text) == (INDEX, text)


def test_annotations_without_a_gpu_are_refused():
    annotations = bound()
    del annotations[INDEX]
    with pytest.raises(ClaimError) as refused:
        CODEC.claim(pod(annotations))
    assert (refused.value.key, refused.value.text) == (INDEX, "")


def test_a_gpu_for_a_pod_that_asks_for_none_is_refused():
    with pytest.raises(ClaimError, match="no container asks"):
        CODEC.claim(pod(bound(), containers=(Container("plain"),)))


# ---------------------------------------------------------------- claims: ACK's form


def ack(allocation, **changes):
    return {ALLOCATION: allocation, ACK_ASSIGNED: "false", ACK_CHANGED_AT: NANOSECONDS} | changes


def test_the_allocation_has_memory_by_container_and_gpu():
    claim = CODEC.claim(pod(ack('{"0":{"1":1},"1":{"1":7}}'), containers=asking(1, 7)))
    assert shares(claim) == {"c0": [("1", 1)], "c1": [("1", 7)]}
    assert (claim.assumed_at, claim.remarks) == (SECONDS, ())


def test_a_container_may_have_several_gpus_in_their_order():
    claim = CODEC.claim(pod(ack('{"0":{"10":2,"9":1,"3":0}}')))
    assert shares(claim) == {"c0": [("9", 1), ("10", 2)]}


def test_containers_are_counted_among_the_app_containers():
    containers = (*asking(0, 4), Container("init", {NAMES.memory: 4}, ContainerKind.INIT))
    claim = CODEC.claim(pod(ack('{"1":{"0":4}}'), containers=containers))
    assert shares(claim) == {"c1": [("0", 4)]}
    with pytest.raises(ClaimError):
        CODEC.claim(pod(ack('{"2":{"0":4}}'), containers=containers))


def test_the_allocation_is_preferred_to_the_index_and_a_difference_is_a_remark():
    claim = CODEC.claim(pod(bound(**{ALLOCATION: '{"0":{"2":3}}'})))
    assert shares(claim) == {"c0": [("2", 3)]}
    assert claim.remarks == (f"{INDEX}: {ALLOCATION} names [2]: '1'",)


def test_an_allocation_that_differs_from_the_limits_has_a_remark():
    claim = CODEC.claim(pod(ack('{"0":{"2":5}}'), containers=asking(3, 1)))
    assert shares(claim) == {"c0": [("2", 5)]}
    assert claim.remarks == (f"""{ALLOCATION}: the limits are c0 3, c1 1: '{{"0":{{"2":5}}}}'""",)


def test_an_empty_allocation_leaves_it_to_the_index():
    for empty in ("{}", '{"0":{}}', '{"0":{"2":0}}'):
        claim = CODEC.claim(pod(bound(**{ALLOCATION: empty})))
        assert shares(claim) == {"c0": [("1", 3)]}


@pytest.mark.parametrize(
    ("flags", "phase", "at"),
    [
        ({ACK_ASSIGNED: "true"}, Phase.ASSIGNED, SECONDS),
        ({ASSIGNED: "true", CHANGED_AT: "1000000000"}, Phase.ASSIGNED, 1.0),
        ({ASSIGNED: "false", CHANGED_AT: "1000000000"}, Phase.ASSUMED, 1.0),
    ],
)
def test_the_flag_of_either_form_assigns_the_pod(flags, phase, at):
    claim = CODEC.claim(pod(ack('{"0":{"1":3}}', **flags)))
    assert claim.allocations[0].phase is phase
    assert (claim.assigned_at or claim.assumed_at) == at


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "null", "[]", '"0"', '{"0":null}', '{"0":{"1":3}}x', '{"0":{"1":3}'),
        *('{"1":{"1":3}}', '{"-1":{"1":3}}', '{"00":{"1":3}}', '{"c0":{"1":3}}', '{"²":{"1":3}}'),
        *('{"0":{"x":3}}', '{"0":{"-1":3}}', '{"0":{"01":3}}', '{"0":{"1024":3}}'),
        *('{"0":{"1":-3}}', '{"0":{"1":3.5}}', '{"0":{"1":"3"}}', '{"0":{"1":1000000000}}'),
        *('{"0":{"1":' + "9" * 10_000 + "}}", '{"0":' * 10_000, '{"\ud800":{"1":3}}'),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_a_broken_allocation_is_refused_even_beside_an_index(text):
    with pytest.raises(ClaimError) as refused:
        CODEC.claim(pod(bound(**{ALLOCATION: text})))
    assert refused.value.object_name == "ml/train-0"
    assert (refused.value.key, refused.value.text) == (ALLOCATION, text)


# ---------------------------------------------------------------- any text

VALUES = (
    st.text(max_size=30)
    | st.integers(-5, 10**20).map(str)
    | st.sampled_from(["true", "false", NANOSECONDS, '{"0":{"1":3}}', '{"0":{"1":1,"2":2}}'])
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("0123", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["0", "1", "2", "-1", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
).map(lambda value: str(value).replace("'", '"'))


@st.composite
def mutated(draw, text):
    """A valid text with a piece of it replaced."""
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 4)))
    return text[:start] + draw(st.text(string.printable, max_size=4)) + text[end:]


@given(
    st.dictionaries(
        st.sampled_from(ANNOTATIONS),
        VALUES | JSON | mutated('{"0":{"1":1,"2":2},"1":{"0":4}}'),
    ),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_any_annotations_give_a_claim_or_the_typed_error(annotations, units):
    object_name = pod(annotations, containers=asking(*units))
    try:
        claim = CODEC.claim(object_name)
    except ClaimError as error:
        assert error.object_name == "ml/train-0"  # noqa: PT017
        assert error.text == annotations.get(error.key, "")  # noqa: PT017
    else:
        assert (claim is None) == (not annotations)
        for allocation in claim.allocations if claim else ():
            assert allocation.shares
            assert all(share.memory_bytes > 0 for share in allocation.shares)


@given(st.text(), st.sampled_from(["label", "broken"]))
def test_any_request_is_read_or_gives_the_typed_error(text, where):
    container = Container(
        "c0", {NAMES.memory: 8}, broken={NAMES.memory: text} if where == "broken" else {}
    )
    labels = {NAMES.count: text} if where == "label" else {}
    try:
        (asked,) = CODEC.requests(pod(containers=(container,), labels=labels))
    except ClaimError as error:
        assert error.text == text  # noqa: PT017
    else:
        assert asked.count * asked.memory_bytes == 8 * GIB


# ---------------------------------------------------------------- writing


def test_the_extenders_annotations_are_written():
    """G1: the size of a GPU of 16276 MiB in units of a MiB."""
    claim = Claim(
        Scheme.GPUSHARE,
        POD,
        "n1",
        (Allocation("c0", (Share("GPU-a", 8138 * MIB),), Phase.ASSUMED),),
        assumed_at=SECONDS,
    )
    gpu = Device(uuid="GPU-a", index=1, memory_bytes=16276 * MIB)
    assert Gpushare(memory_unit=MIB).annotations(claim, {"GPU-a": gpu}) == {
        INDEX: "1",
        GPU_TOTAL: "16276",
        POD_TOTAL: "8138",
        ASSIGNED: "false",
        CHANGED_AT: NANOSECONDS,
    }


def test_several_gpus_are_written_by_container():
    claim = Claim(
        Scheme.GPUSHARE,
        POD,
        "",
        (
            Allocation("c1", (Share("0", GIB), Share("2", 2 * GIB)), Phase.ASSIGNED),
            Allocation("c3", (Share("2", GIB),), Phase.ASSIGNED),
        ),
        assigned_at=SECONDS,
    )
    written = Gpushare().annotations(claim, devices(), ["c0", "c1", "c2", "c3"])
    assert written == {
        ALLOCATION: '{"1":{"0":1,"2":2},"3":{"2":1}}',
        ACK_ASSIGNED: "true",
        ACK_CHANGED_AT: NANOSECONDS,
    }


ONE = (Allocation("c0", (Share("1", GIB),), Phase.ASSUMED),)


def unspeakable(allocations=ONE, assumed_at=SECONDS, scheme=Scheme.GPUSHARE, **more):
    return Claim(scheme, POD, "", allocations, assumed_at=assumed_at, **more)


@pytest.mark.parametrize(
    "claim",
    [
        unspeakable(scheme=Scheme.GAIA),
        unspeakable(failed=True),
        unspeakable(unserved=("c0",)),
        unspeakable(assumed_at=None),
        unspeakable(assumed_at=-1.0),
        unspeakable(assumed_at=float("nan")),
        unspeakable(assumed_at=float("inf")),
        unspeakable(()),
        unspeakable((Allocation("c0", (), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", GIB),), Phase.RELEASED),)),
        unspeakable((*ONE, Allocation("c1", (Share("1", GIB),), Phase.ASSIGNED))),
        unspeakable((*ONE, *ONE)),
        unspeakable((Allocation("c0", (Share("9", GIB),), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", None),), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", 0),), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", GIB + 1),), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", GIB, 500),), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", GIB), Share("1", GIB)), Phase.ASSUMED),)),
        unspeakable((Allocation("c0", (Share("1", GIB), Share("0", GIB)), Phase.ASSUMED),)),
        unspeakable((Allocation("c9", (Share("0", GIB), Share("1", GIB)), Phase.ASSUMED),)),
    ],
)
def test_a_claim_that_gpushare_cannot_express_is_not_written(claim):
    with pytest.raises(ClaimError) as refused:
        Gpushare().annotations(claim, devices(), ["c0", "c1"])
    assert refused.value.object_name == "ml/train-0"


def test_a_gpu_of_unknown_size_cannot_be_claimed():
    for gpu in (Device(index=1), Device(uuid="GPU-a", memory_bytes=GIB)):
        with pytest.raises(ClaimError):
            CODEC.annotations(unspeakable(), {"1": gpu})


TIMES = st.integers(2**23, 2**32).map(float) | st.floats(2**23, 2**32)


@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 15)), min_size=1, max_size=3),
    st.sampled_from([Phase.ASSUMED, Phase.ASSIGNED]),
    TIMES,
    st.sampled_from([MIB, 256 * MIB, GIB]),
)
def test_every_claim_that_was_written_is_read(containers, phase, at, unit):
    """Containers as GPU -> units; those with none do not ask."""
    asked = asking(*(sum(gpus.values()) for gpus in containers))
    allocations = tuple(
        Allocation(
            container.name,
            tuple(Share(str(gpu), units * unit) for gpu, units in sorted(gpus.items())),
            phase,
        )
        for container, gpus in zip(asked, containers, strict=True)
        if gpus
    )
    times = {"assumed_at" if phase is Phase.ASSUMED else "assigned_at": at}
    claim = Claim(Scheme.GPUSHARE, POD, "", allocations, **times)
    codec = Gpushare(memory_unit=unit)
    if not allocations:
        with pytest.raises(ClaimError):
            codec.annotations(claim, devices())
        return
    written = codec.annotations(claim, devices(), [container.name for container in asked])
    assert codec.claim(pod(written, containers=asked)) == claim


# ---------------------------------------------------------------- the only GPU of a node


def only_gpu():
    return CODEC.devices(Node("n1", capacity={NAMES.memory: 15, NAMES.count: 1}))


def test_the_only_gpu_is_granted_without_annotations():
    running = pod(
        containers=asking(3, 2),
        statuses=(
            Status("c0", ContainerState.RUNNING),
            Status("c1", ContainerState.WAITING),
        ),
    )
    claim = Gpushare().sole_gpu(running, only_gpu())
    assert shares(claim) == {"c0": [("0", 3)], "c1": [("0", 2)]}
    assert [each.phase for each in claim.allocations] == [Phase.ASSIGNED, Phase.ASSUMED]
    assert claim.node == "n1"


def test_a_container_that_crashes_had_its_gpu():
    crashing = pod(statuses=(Status("c0", ContainerState.WAITING, restarts=3),))
    claim = Gpushare().sole_gpu(crashing, only_gpu())
    assert claim.allocations[0].phase is Phase.ASSIGNED


@pytest.mark.parametrize(
    ("object_name", "gpus"),
    [
        (pod(), 2),
        (pod(), 0),
        (pod(bound()), 1),
        (pod(containers=(Container("plain"),)), 1),
        (Pod(POD, containers=asking(3)), 1),
    ],
    ids=["two GPUs", "no GPU", "annotated", "asks for nothing", "not bound"],
)
def test_nothing_is_granted_that_the_annotations_or_the_scheduler_decide(object_name, gpus):
    node = Node("n1", capacity={NAMES.memory: 15 if gpus else 0, NAMES.count: gpus})
    assert Gpushare().sole_gpu(object_name, CODEC.devices(node)) is None


# ---------------------------------------------------------------- edits


def test_a_container_gets_the_environment_of_allocate():
    edits = CODEC.edits(POD, ONE[0], devices())
    assert edits.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-00000001",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "1",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    assert (edits.mounts, edits.devices, edits.annotations) == ((), (), {})


def test_isolation_that_is_off_sets_cgpu_disable():
    edits = Gpushare(isolation=False).edits(POD, ONE[0], devices())
    assert edits.env["CGPU_DISABLE"] == "true"


def test_an_allocation_on_an_unknown_gpu_gives_nothing():
    with pytest.raises(ClaimError) as refused:
        CODEC.edits(POD, Allocation("c0", (Share("7", GIB),), Phase.ASSUMED), devices())
    assert (refused.value.object_name, refused.value.text) == ("ml/train-0", "7")


def test_it_is_called_gpushare_and_memory_asks_for_it():
    assert (CODEC.scheme, CODEC.resources) == (Scheme.GPUSHARE, ("aliyun.com/gpu-mem",))
