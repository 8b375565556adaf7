"""Volcano's and HAMi's annotations on pods: who has which device, and where the pod stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import Container, Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.text import MOST_SECONDS

POD = PodRef("uid-1", "ml", "train-0")
CODEC = Volcano(memory_factor=10)
HAMI_CODEC = Volcano(HAMI)
UNIT = 10 * MIB
IDS, TO_ALLOCATE, NODE, TIME = (
    f"volcano.sh/{name}"
    for name in ("vgpu-ids-new", "devices-to-allocate", "vgpu-node", "vgpu-time")
)
BIND_PHASE, BIND_TIME = "volcano.sh/bind-phase", "volcano.sh/bind-time"
HAMI_IDS, HAMI_TO_ALLOCATE = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"
ENDED = "18446744073709551615"
A, B = "GPU-a,NVIDIA,128,10:", "GPU-b,NVIDIA,256,20:"
SHARE_A, SHARE_B = Share("GPU-a", 128 * UNIT, 100), Share("GPU-b", 256 * UNIT, 200)


def containers(*names, resource="volcano.sh/vgpu-number", kind=ContainerKind.APP):
    """Those that begin with ``plain`` ask for nothing."""
    return tuple(
        Container(name, {} if name.startswith("plain") else {resource: 1}, kind) for name in names
    )


def pod(annotations, specs=None):
    return Pod(POD, annotations=annotations, containers=specs or containers("x", "y"))


def bound(**changes):
    """What the scheduler writes for two containers."""
    text = f"{A};{B}"
    return {
        IDS: text,
        TO_ALLOCATE: text,
        NODE: "n1",
        TIME: "1700000000",
        BIND_TIME: "1700000000",
        BIND_PHASE: "allocating",
    } | changes


def phases(claim):
    return {each.container: each.phase for each in claim.allocations}


# ---------------------------------------------------------------- phases


def test_a_bound_pod_is_assumed_until_allocate_has_served_it():
    assert CODEC.claim(pod(bound())) == Claim(
        Scheme.VOLCANO,
        POD,
        "n1",
        (
            Allocation("x", (SHARE_A,), Phase.ASSUMED),
            Allocation("y", (SHARE_B,), Phase.ASSUMED),
        ),
        assumed_at=1700000000,
        unserved=("x", "y"),
    )


@pytest.mark.parametrize("struck", [f";{B}", f"{B}", f";{B};"])
def test_a_container_that_the_plugin_has_struck_is_assigned(struck):
    """HAMi's plugin drops or adds empty segments when it strikes one."""
    claim = CODEC.claim(pod(bound(**{TO_ALLOCATE: struck})))
    assert phases(claim) == {"x": Phase.ASSIGNED, "y": Phase.ASSUMED}
    assert claim.unserved == ("y",)


@pytest.mark.parametrize("empty", ["", ";", ";;", ":;"])
def test_a_served_pod_is_assigned_and_keeps_when_it_was_assumed(empty):
    served = bound(**{TO_ALLOCATE: empty, BIND_PHASE: "success", TIME: ENDED})
    claim = CODEC.claim(pod(served))
    assert set(phases(claim).values()) == {Phase.ASSIGNED}
    assert (claim.assumed_at, claim.unserved, claim.failed) == (1700000000, (), False)


def test_a_pod_that_the_plugin_could_not_serve_has_failed_and_stays_a_candidate():
    claim = CODEC.claim(pod(bound(**{BIND_PHASE: "failed", TIME: ENDED})))
    assert claim.failed
    assert claim.unserved == ("x", "y")
    assert set(phases(claim).values()) == {Phase.ASSUMED}


def test_success_counts_even_if_the_copy_was_never_struck():
    claim = CODEC.claim(pod(bound(**{BIND_PHASE: "success"})))
    assert set(phases(claim).values()) == {Phase.ASSIGNED}
    assert claim.unserved == ("x", "y")


@pytest.mark.parametrize(
    ("left", "phase"),
    [
        ({IDS: A}, Phase.ASSUMED),
        ({IDS: A, TIME: "1700000000"}, Phase.ASSUMED),
        ({IDS: A, TIME: ENDED}, Phase.ASSIGNED),
        ({IDS: A, BIND_PHASE: "success"}, Phase.ASSIGNED),
        ({IDS: A, TO_ALLOCATE: ""}, Phase.ASSIGNED),
        ({TO_ALLOCATE: A}, Phase.ASSUMED),
    ],
)
def test_what_is_left_of_the_annotations_decides(left, phase):
    claim = CODEC.claim(pod(left, containers("x")))
    assert claim.allocations == (Allocation("x", (SHARE_A,), phase),)
    assert not claim.remarks


@pytest.mark.parametrize("empty", [{}, {IDS: ""}, {IDS: ";"}, {NODE: "n1", BIND_PHASE: "failed"}])
def test_annotations_without_devices_are_no_claim(empty):
    assert CODEC.claim(pod(empty)) is None


@pytest.mark.parametrize(
    ("key", "text", "remark"),
    [
        (BIND_PHASE, "perhaps", "volcano.sh/bind-phase: not a phase: 'perhaps'"),
        (TIME, "yesterday", "volcano.sh/vgpu-time: not a time in unix seconds: 'yesterday'"),
        (TIME, "253402300800", "volcano.sh/vgpu-time: not a time in unix seconds: '253402300800'"),
        (BIND_TIME, "9" * 10_000, "volcano.sh/bind-time: not a time in unix seconds: '999"),
        (TO_ALLOCATE, "GPU-a", "volcano.sh/devices-to-allocate: not <UUID>,<type>,<memory>"),
        (TO_ALLOCATE, A, "volcano.sh/devices-to-allocate: not the last of the pod's devices"),
        (TO_ALLOCATE, f"{B};{A};{B}", "volcano.sh/devices-to-allocate: not the last"),
    ],
)
def test_what_cannot_be_read_beside_the_devices_is_a_doubt(key, text, remark):
    claim = CODEC.claim(pod(bound(**{key: text})))
    assert [each.shares for each in claim.allocations] == [(SHARE_A,), (SHARE_B,)]
    (only,) = claim.remarks
    assert only.startswith(remark)
    assert len(only) < 200


# ---------------------------------------------------------------- whose a segment is


INIT = containers("setup", kind=ContainerKind.INIT)
PLAIN_INIT = containers("plain-setup", kind=ContainerKind.INIT)
SIDECAR = containers("beside", kind=ContainerKind.SIDECAR)


@pytest.mark.parametrize(
    ("specs", "text", "holding"),
    [
        pytest.param(containers("plain", "x"), A, {"x": "a"}, id="only those that ask"),
        pytest.param(containers("plain", "x", "y"), f"{A};{B}", {"x": "a", "y": "b"}, id="two"),
        pytest.param(containers("plain", "x"), f"{A};", {"x": "a"}, id="a separator at the end"),
        pytest.param(containers("x"), A[:-1], {"x": "a"}, id="no colon at the end"),
        pytest.param(containers("plain", "x"), f";{A}", {"x": "a"}, id="as HAMi writes them"),
        pytest.param((*containers("x"), *INIT), A, {"x": "a"}, id="the scheduler knows no init"),
        pytest.param(containers("x"), f"{A}{B}", {"x": "ab"}, id="two devices of one"),
        pytest.param(
            containers("plain", resource="own/gpu"), A, {"plain": "a"}, id="a renamed resource"
        ),
    ],
)
def test_volcano_writes_a_segment_for_each_container_that_asks(specs, text, holding):
    assert held(CODEC.claim(pod({IDS: text}, specs))) == holding


@pytest.mark.parametrize(
    ("specs", "text", "holding"),
    [
        pytest.param(containers("plain", "x"), f";{A};", {"x": "a"}, id="every container"),
        pytest.param(containers("x", "plain"), f"{A};;", {"x": "a"}, id="empty ones at the end"),
        pytest.param((*containers("x"), *PLAIN_INIT), f"{A};", {"x": "a"}, id="older: apps only"),
        pytest.param((*containers("x"), *INIT), f"{A};", {"x": "a"}, id="older, beside an init"),
        pytest.param((*containers("x"), *PLAIN_INIT), f";{A};", {"x": "a"}, id="newer: init first"),
        pytest.param(
            (*containers("plain", "x"), *INIT, *SIDECAR),
            f"{A};;;{B};",
            {"setup": "a", "x": "b"},
            id="newer: the sidecar has none",
        ),
        pytest.param(containers("plain", "x"), A, {"x": "a"}, id="as Volcano writes them"),
        pytest.param(
            containers("plain", "plain-too"), f";{A};", {"plain-too": "a"}, id="a renamed resource"
        ),
    ],
)
def test_hami_writes_a_segment_for_every_container(specs, text, holding):
    specs = tuple(
        structs.replace(each, limits={"nvidia.com/gpu": 1} if each.limits else {}) for each in specs
    )
    if "beside" in [each.name for each in specs]:
        specs = tuple(
            structs.replace(each, limits={} if each.name == "beside" else each.limits)
            for each in specs
        )
    assert held(HAMI_CODEC.claim(pod({HAMI_IDS: text}, specs))) == holding


def held(claim):
    """Container -> the last letters of its devices."""
    return {
        each.container: "".join(share.device[-1] for share in each.shares)
        for each in claim.allocations
    }


def test_hami_counts_memory_in_mebibytes_and_volcano_in_units():
    for codec, key, unit in ((CODEC, IDS, UNIT), (HAMI_CODEC, HAMI_IDS, MIB)):
        claim = codec.claim(pod({key: A}, containers("x", resource=codec.key_set.number)))
        assert claim.allocations[0].shares == (Share("GPU-a", 128 * unit, 100),)


def test_a_mig_slot_keeps_its_name():
    claim = CODEC.claim(pod({IDS: "GPU-a[group2-3],NVIDIA,1024,0:"}, containers("x")))
    assert claim.allocations[0].shares == (Share("GPU-a[group2-3]", 1024 * UNIT, 0),)


def test_other_vendors_devices_are_not_ours():
    text = f"MLU-1,MLU,1,1:{A}"
    claim = CODEC.claim(pod({IDS: text, TO_ALLOCATE: "MLU-1,MLU,1,1:"}, containers("x")))
    assert claim.allocations == (Allocation("x", (SHARE_A,), Phase.ASSIGNED),)


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("GPU-a", "GPU-a"),
        ("GPU-a,NVIDIA,1", "GPU-a,NVIDIA,1"),
        ("GPU-a,NVIDIA,x,1:", "GPU-a,NVIDIA,x,1"),
        ("GPU-a,NVIDIA,-1,1:", "GPU-a,NVIDIA,-1,1"),
        ("GPU-a,NVIDIA,1,2147483648:", "GPU-a,NVIDIA,1,2147483648"),
        (f"GPU-a,NVIDIA,{'9' * 10_000},1:", f"GPU-a,NVIDIA,{'9' * 10_000},1"),
        ("GPU-a,NVIDIA,\N{SUPERSCRIPT TWO},1:", "GPU-a,NVIDIA,\N{SUPERSCRIPT TWO},1"),
        (",NVIDIA,1,1:", ",NVIDIA,1,1"),
        ("GPU a,NVIDIA,1,1:", "GPU a,NVIDIA,1,1"),
        (f"{A};{A};{A};{A}", f"{A};{A};{A};{A}"),
    ],
)
def test_devices_that_cannot_be_read_are_refused(text, offending):
    with pytest.raises(ClaimError) as refused:
        CODEC.claim(pod({IDS: text}))
    assert (refused.value.object_name, refused.value.key) == ("ml/train-0", IDS)
    assert refused.value.text == offending


def test_a_request_that_cannot_be_read_is_refused_with_the_claim():
    with pytest.raises(ClaimError, match="vgpu-number"):
        CODEC.claim(pod({IDS: A}, (Container("x", broken={"volcano.sh/vgpu-number": "1m"}),)))


# ---------------------------------------------------------------- the older plugin


OLD = {"volcano.sh/gpu-index": "1", "volcano.sh/predicate-time": "1700000000250000000"}


def old_pod(annotations, *limits, kinds=None):
    names = ("gpu-memory", "gpu-number")
    specs = tuple(
        Container(
            f"c{number}",
            {f"volcano.sh/{names[at]}": amount for at, amount in enumerate(each) if amount},
            (kinds or {}).get(number, ContainerKind.APP),
        )
        for number, each in enumerate(limits)
    )
    return Pod(POD, annotations=annotations, containers=specs)


def test_the_older_plugins_gpu_is_an_index():
    claim = CODEC.claim(old_pod(OLD, (100, 0), (50, 0), (70, 0), kinds={2: ContainerKind.INIT}))
    assert claim == Claim(
        Scheme.VOLCANO,
        POD,
        "",
        (
            Allocation("c0", (Share("1", 100 * UNIT),), Phase.ASSUMED),
            Allocation("c1", (Share("1", 50 * UNIT),), Phase.ASSUMED),
        ),
        assumed_at=1700000000.25,
    )


def test_whole_gpus_of_the_older_plugin_are_allocated_in_order():
    annotations = OLD | {"volcano.sh/gpu-index": "3,0,5", "volcano.sh/gpu-assigned": "true"}
    annotations["volcano.sh/predicate-time"] = "once"
    claim = CODEC.claim(old_pod(annotations, (0, 1), (0, 2)))
    assert held(claim) == {"c0": "3", "c1": "05"}
    assert set(phases(claim).values()) == {Phase.ASSIGNED}
    assert claim.allocations[0].shares == (Share("3", None, 1000),)
    assert claim.remarks == ("volcano.sh/predicate-time: not a time: 'once'",)


@pytest.mark.parametrize("text", ["", "x", "1,", "-1", "99999", ",".join(["1"] * 2000), "0,1"])
def test_the_older_plugins_bad_index_is_never_gpu_0(text):
    with pytest.raises(ClaimError) as refused:
        CODEC.claim(old_pod({"volcano.sh/gpu-index": text}, (0, 3)))
    assert (refused.value.key, refused.value.text) == ("volcano.sh/gpu-index", text)


def test_an_index_without_a_request_is_refused():
    with pytest.raises(ClaimError, match="no container asks"):
        CODEC.claim(old_pod(OLD, (0, 0)))


# ---------------------------------------------------------------- writing


def test_a_claim_is_written_as_the_scheduler_writes_it():
    written = CODEC.annotations(CODEC.claim(pod(bound())), {})
    assert written == bound()


def test_an_assigned_claim_is_written_as_the_plugin_leaves_it():
    served = bound(**{TO_ALLOCATE: ";", BIND_PHASE: "success", TIME: ENDED})
    assert CODEC.annotations(CODEC.claim(pod(served)), {}) == served


def test_hamis_claim_has_a_segment_for_every_container():
    claim = Claim(
        Scheme.VOLCANO,
        POD,
        "n1",
        (Allocation("x", (Share("GPU-a", 128 * MIB, 100),), Phase.ASSIGNED),),
        assumed_at=1700000000.9,
    )
    assert HAMI_CODEC.annotations(claim, {}, containers=("plain", "x", "plain-too")) == {
        HAMI_IDS: f";{A};;",
        HAMI_TO_ALLOCATE: ";;;",
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "success",
    }


def test_a_device_is_written_under_its_uuid():
    claim = Claim(Scheme.VOLCANO, POD, "", (Allocation("x", (Share("0", 0, 0),), Phase.ASSIGNED),))
    written = CODEC.annotations(claim, {"0": Device("GPU-a", 0)})
    assert written[IDS] == "GPU-a,NVIDIA,0,0:"


def claim_of(*shares, phase=Phase.ASSIGNED, **changes):
    return structs.replace(
        Claim(Scheme.VOLCANO, POD, "n1", (Allocation("x", shares, phase),)), **changes
    )


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(claim_of(), id="no devices"),
        pytest.param(claim_of(SHARE_A, allocations=()), id="no containers"),
        pytest.param(claim_of(Share("GPU-a", None, 0)), id="unlimited memory"),
        pytest.param(claim_of(Share("GPU-a", 0, None)), id="unlimited cores"),
        pytest.param(claim_of(Share("GPU-a", UNIT + MIB, 0)), id="not whole units"),
        pytest.param(claim_of(Share("GPU-a", 0, 105)), id="not whole percents"),
        pytest.param(claim_of(Share("GPU-a", 2**31 * UNIT, 0)), id="too large"),
        pytest.param(claim_of(Share("GPU-a", -UNIT, 0)), id="negative"),
        pytest.param(claim_of(Share("GPU a", 0, 0)), id="not a device"),
        pytest.param(claim_of(SHARE_A, phase=Phase.RELEASED), id="released"),
        pytest.param(claim_of(SHARE_A, phase=Phase.ASSUMED), id="assumed, but not to be served"),
        pytest.param(claim_of(SHARE_A, unserved=("x",), failed=True), id="failed after all"),
        pytest.param(claim_of(SHARE_A, unserved=("y",)), id="another container to be served"),
        pytest.param(claim_of(SHARE_A, unserved=("x", "x")), id="one twice to be served"),
        *(
            pytest.param(claim_of(SHARE_A, assumed_at=at), id=f"assumed at {at}")
            for at in (-1.0, 1e12, float("inf"), float("nan"))
        ),
        pytest.param(claim_of(SHARE_A, scheme=Scheme.GAIA), id="another language"),
        pytest.param(
            claim_of(SHARE_A, allocations=(Allocation("x", (SHARE_A,), Phase.ASSIGNED),) * 2),
            id="a container twice",
        ),
    ],
)
def test_a_claim_that_the_annotations_cannot_express_is_refused(claim):
    with pytest.raises(ClaimError) as refused:
        CODEC.annotations(claim, {})
    assert refused.value.object_name == "ml/train-0"


@pytest.mark.parametrize("names", [(), ("y",), ("x", "x")])
def test_hamis_claim_is_not_written_without_the_pods_containers(names):
    with pytest.raises(ClaimError, match="not the pod's containers"):
        HAMI_CODEC.annotations(claim_of(SHARE_A), {}, containers=names)


# ---------------------------------------------------------------- properties


DEVICES = ("GPU-a", "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", "MIG-GPU-a/1/0", "GPU-a[group2-3]")


@st.composite
def situations(draw):
    """A language, a pod's containers, and a claim of those that ask."""
    codec = draw(st.sampled_from([CODEC, HAMI_CODEC, Volcano()]))
    shares = st.builds(
        Share,
        st.sampled_from(DEVICES),
        st.integers(0, 2**31 - 1).map(codec.unit_bytes.__mul__),
        st.integers(0, 100).map((10).__mul__),
    )
    asks = [*draw(st.lists(st.booleans(), max_size=3)), True]
    names = [f"c{number}" for number in range(len(asks))]
    asking = [name for name, ask in zip(names, asks, strict=True) if ask]
    held = [tuple(draw(st.lists(shares, min_size=1, max_size=2))) for _ in asking]
    served = draw(st.integers(0, len(asking)))
    phase, failed = draw(
        st.sampled_from([(Phase.ASSUMED, False), (Phase.ASSUMED, True), (Phase.ASSIGNED, False)])
    )
    specs = [
        Container(name, {codec.key_set.number: 1} if ask else {})
        for name, ask in zip(names, asks, strict=True)
    ]
    if codec is HAMI_CODEC and draw(st.booleans()):  # the annotations have it in front
        specs.append(structs.replace(specs.pop(0), kind=ContainerKind.INIT))
    claim = Claim(
        Scheme.VOLCANO,
        POD,
        draw(st.sampled_from(["", "n1", "a;b,c:"])),
        tuple(
            Allocation(name, mine, Phase.ASSIGNED if number < served else phase)
            for number, (name, mine) in enumerate(zip(asking, held, strict=True))
        ),
        assumed_at=draw(st.none() | st.integers(0, MOST_SECONDS)),
        unserved=tuple(asking[served:]),
        failed=failed,
    )
    return codec, Pod(POD, containers=tuple(specs)), tuple(names), claim


@given(situations())
def test_every_claim_that_is_written_is_read_back(situation):
    codec, spec, names, claim = situation
    written = codec.annotations(claim, {}, containers=names)
    assert codec.claim(structs.replace(spec, annotations=written)) == claim


broken_texts = st.text(max_size=60) | st.text("GPU-ab,NVIDA0123456789:;[] -", max_size=80)


@st.composite
def mutated(draw):
    """A good text with a piece of it replaced."""
    text = draw(
        st.sampled_from([f"{A};{B}", f"{A};{B};", f"{A}{B}", "success", "1700000000", ENDED])
    )
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(broken_texts) + text[draw(st.integers(start, len(text))) :]


@given(
    st.sampled_from([CODEC, HAMI_CODEC]),
    st.dictionaries(
        st.sampled_from(
            ["devices", "to_allocate", "time", "bind_time", "bind_phase", "node", "old"]
        ),
        mutated() | broken_texts,
    ),
)
def test_any_text_gives_a_claim_or_a_typed_error(codec, texts):
    other_keys = {"old": "volcano.sh/gpu-index"}
    annotations = {
        other_keys.get(name) or getattr(codec.key_set, name): texts[name] for name in texts
    }
    specs = containers("x", "plain", "y", resource=codec.key_set.number)
    try:
        claim = codec.claim(pod(annotations, specs))
    except ClaimError as refused:
        assert refused.object_name == "ml/train-0"  # noqa: PT017  # either is right
        assert refused.key in annotations  # noqa: PT017
        assert refused.text in annotations[refused.key]  # noqa: PT017
        assert str(refused).startswith(f"ml/train-0: {refused.key}: ")  # noqa: PT017
    else:
        assert claim is None or all(each.shares for each in claim.allocations)


@pytest.mark.slow
def test_a_huge_text_is_read_in_one_pass():
    """Linear: quadratic work on a megabyte of separators would not end in a test's time."""
    for text in (";" * 2**20, ":" * 2**20, "," * 2**20, A * 2**15, f"{A};" * 2**15):
        try:
            claim = CODEC.claim(pod({IDS: text, TO_ALLOCATE: text}))
        except ClaimError as refused:
            assert len(str(refused)) < 300  # noqa: PT017  # either is right
        else:
            assert claim is None


def test_both_dialects_are_read_from_their_own_keys_only():
    assert Volcano(VOLCANO).claim(pod({HAMI_IDS: A})) is None
    assert HAMI_CODEC.claim(pod({IDS: A})) is None
