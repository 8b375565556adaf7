"""What nodes have of Volcano and HAMi: their GPUs, heartbeat, locks."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError, Handshake, HandshakeState, NodeLock
from vgpu.schemes.volcano.codec import HAMI, VOLCANO, Volcano
from vgpu.schemes.volcano.node import (
    Registration,
    handshake_text,
    lock_text,
    registration,
    registrations,
)

CODEC = Volcano(memory_factor=10)
HAMI_CODEC = Volcano(HAMI)
REGISTER, HAMI_REGISTER = "volcano.sh/node-vgpu-register", "hami.io/node-nvidia-register"
AT = 1755659045.0  # 2025-08-20 03:04:05 UTC


def node(annotations=None, **more):
    return Node("n1", annotations=annotations or {}, **more)


# ---------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("codec", "text", "device"),
    [
        pytest.param(
            CODEC,
            "GPU-a,10,4914,NVIDIA-NVIDIA L40S,true,hami-core:",
            Device("GPU-a", None, 49140 * MIB, 1000, 10, healthy=True, model="NVIDIA L40S"),
            id="E5: 4914 units of 10 MiB",
        ),
        pytest.param(
            CODEC,
            "GPU-a,10,4914,NVIDIA-Tesla T4,false:",
            Device("GPU-a", None, 49140 * MIB, 1000, 10, healthy=False, model="Tesla T4"),
            id="before there were modes",
        ),
        pytest.param(
            CODEC,
            "GPU-a,10,4914,NVIDIA-T4,1,mig,something newer",
            Device("GPU-a", None, 49140 * MIB, 1000, 10, model="T4"),
            id="six columns at least",
        ),
        pytest.param(
            HAMI_CODEC,
            "GPU-a,10,16384,200,NVIDIA-T4,0,true:",
            Device("GPU-a", None, 16384 * MIB, 2000, 10, model="T4"),
            id="HAMi, seven columns, with core scaling",
        ),
        pytest.param(
            HAMI_CODEC,
            "GPU-a,10,16384,100,NVIDIA-T4,-1,true,3:",
            Device("GPU-a", 3, 16384 * MIB, 1000, 10, model="T4"),
            id="HAMi, eight columns",
        ),
        pytest.param(
            HAMI_CODEC,
            "GPU-a,10,16384,100,NVIDIA-T4,0,true,3,hami-core:",
            Device("GPU-a", 3, 16384 * MIB, 1000, 10, model="T4"),
            id="HAMi, nine columns",
        ),
        pytest.param(
            HAMI_CODEC,
            '[{"id":"GPU-a","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA A100-SXM4-80GB",'
            '"mode":"hami-core","migProfiles":[],"devicevendor":"NVIDIA"}]',
            Device("GPU-a", 0, 16384 * MIB, 1000, 10, healthy=False, model="NVIDIA A100-SXM4-80GB"),
            id="HAMi, JSON without its zeros",
        ),
    ],
)
def test_a_gpu_is_read_in_every_form(codec, text, device):
    assert codec.devices(node({codec.key_set.register: text})) == (device,)


@pytest.mark.parametrize("text", ["", ":", "::", "[]"])
def test_a_node_may_register_no_gpus(text):
    assert CODEC.devices(node({REGISTER: text})) == ()


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("no GPUs", "no GPUs"),
        ("GPU-a,10,4914,NVIDIA", "GPU-a,10,4914,NVIDIA"),
        ("GPU-a,ten,4914,NVIDIA,true,mig:", "GPU-a,ten,4914,NVIDIA,true,mig"),
        ("GPU-a,10,-1,NVIDIA,true,mig:", "GPU-a,10,-1,NVIDIA,true,mig"),
        ("GPU-a,10,4914,NVIDIA,yes,mig:", "GPU-a,10,4914,NVIDIA,yes,mig"),
        ("GPU-a,10,4294967296,NVIDIA,true,mig:", "GPU-a,10,4294967296,NVIDIA,true,mig"),
        ("GPU a,1,1,NVIDIA,true,mig:", "GPU a,1,1,NVIDIA,true,mig:"),
        (",1,1,NVIDIA,true,mig:", ",1,1,NVIDIA,true,mig:"),
        ("GPU-a,1,1,N,true,mig:" * 2, "GPU-a,1,1,N,true,mig:" * 2),
        ("[", "["),
        ("[null]", "[null]"),
        ('[{"id":7}]', '[{"id":7}]'),
        ('[{"id":"GPU-a","devmem":-1}]', '[{"id":"GPU-a","devmem":-1}]'),
        ('[{"id":"GPU-a","devmem":1e99}]', '[{"id":"GPU-a","devmem":1e99}]'),
        ("[" * 100_000, "[" * 100_000),
        ("[\ud800]", "[\ud800]"),
    ],
)
def test_a_register_that_cannot_be_read_is_refused(text, offending):
    with pytest.raises(ClaimError) as refused:
        CODEC.devices(node({REGISTER: text}))
    assert (refused.value.object_name, refused.value.key) == ("node n1", REGISTER)
    assert refused.value.text == offending


def test_gpus_are_registered_as_the_plugins_do_it():
    gpus = (
        Device("GPU-a", 1, 49144 * MIB, slots=10, model="NVIDIA L40S"),
        Device("GPU-b", 0, 24 * 1024 * MIB, healthy=False, model="T4"),
    )
    assert CODEC.register(gpus) == {
        REGISTER: "GPU-a,10,4914,NVIDIA-NVIDIA L40S,true,hami-core:"
        "GPU-b,10,2457,NVIDIA-T4,false,hami-core:"
    }
    (text,) = HAMI_CODEC.register(gpus, mode="mig").values()
    assert json.loads(text) == [
        {
            "id": "GPU-a",
            "index": 1,
            "count": 10,
            "devmem": 49144,
            "devcore": 100,
            "type": "NVIDIA-NVIDIA L40S",
            "mode": "mig",
            "health": True,
            "plugin": "vgpu",
        },
        {
            "id": "GPU-b",
            "index": 0,
            "count": 10,
            "devmem": 24576,
            "devcore": 100,
            "type": "NVIDIA-T4",
            "mode": "mig",
            "plugin": "vgpu",
        },
    ]


@pytest.mark.parametrize(
    "gpu",
    [
        Registration("GPU a"),
        Registration("GPU-a", type="one, two"),
        Registration("GPU-a", type="one:two"),
        Registration("GPU-a", mode="a\nb"),
        Registration("GPU-a", slots=-1),
        Registration("GPU-a", memory=2**31),
        Registration("GPU-a", type="\ud800"),
    ],
)
def test_a_gpu_that_the_register_cannot_express_is_refused(gpu):
    for key_set in (VOLCANO, HAMI):
        with pytest.raises(ClaimError):
            registration([gpu], key_set)


def test_a_missing_index_is_not_invented():
    with pytest.raises(ClaimError, match="index is missing"):
        registration([Registration("GPU-a")], HAMI, columns=9)


numbers = st.integers(0, 2**31 - 1)
words = st.sampled_from(["", "NVIDIA-T4", "NVIDIA-Quadro RTX 6000/8000", 'é"[]{}\\', "hami-core"])
gpus = st.lists(
    st.builds(
        Registration,
        uuid=st.sampled_from(
            ["GPU-a", "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", "MIG-GPU-a/1/0"]
        ),
        index=numbers,
        slots=numbers,
        memory=numbers,
        cores=numbers,
        type=words,
        numa=st.integers(-1, 7),
        mode=words,
        healthy=st.booleans(),
    ),
    unique_by=lambda gpu: gpu.uuid,
    max_size=3,
)
FORMS = [(VOLCANO, 5), (VOLCANO, 0), (HAMI, 7), (HAMI, 8), (HAMI, 9), (HAMI, 0)]


@given(gpus, st.sampled_from(FORMS))
def test_every_gpu_that_is_registered_is_read_back(gpus, form):
    key_set, columns = form
    text = registration(gpus, key_set, columns)
    read = registrations(node({key_set.register: text}), key_set)
    shown = key_set.columns[: columns or None]
    assert [[getattr(gpu, name) for name in shown] for gpu in read] == [
        [getattr(gpu, name) for name in shown] for gpu in gpus
    ]


@st.composite
def broken_registers(draw):
    text = draw(
        st.sampled_from(
            [
                "GPU-a,10,4914,NVIDIA-T4,true,hami-core:",
                "GPU-a,10,4914,100,NVIDIA-T4,0,true,1,hami-core:GPU-b,1,1,1,N,0,false,1,mig:",
                '[{"id":"GPU-a","count":10,"devmem":1,"health":true}]',
            ]
        )
    )
    start = draw(st.integers(0, len(text)))
    return text[:start] + draw(st.text(max_size=9)) + text[draw(st.integers(start, len(text))) :]


@given(st.text() | broken_registers(), st.sampled_from([CODEC, HAMI_CODEC]))
def test_any_register_gives_devices_or_a_typed_error(text, codec):
    try:
        devices = codec.devices(node({codec.key_set.register: text}))
    except ClaimError as refused:
        assert refused.key == codec.key_set.register  # noqa: PT017  # either is right
        assert refused.text in text  # noqa: PT017
    else:
        assert len({device.uuid for device in devices}) == len(devices)


# ---------------------------------------------------------------- the older plugin


def test_the_older_plugins_gpus_are_counted_by_the_kubelet():
    capacity = {"volcano.sh/gpu-number": 2, "volcano.sh/gpu-memory": 3276}
    ill = node({"volcano.sh/gpu-unhealthy-ids": "1,"}, capacity=capacity)
    assert CODEC.devices(ill) == (
        Device(index=0, memory_bytes=16380 * MIB),
        Device(index=1, memory_bytes=16380 * MIB, healthy=False),
    )
    assert HAMI_CODEC.devices(ill) == ()


@pytest.mark.parametrize(
    ("capacity", "ill"),
    [({"volcano.sh/gpu-number": 10**9}, ""), ({"volcano.sh/gpu-number": 1}, "x")],
)
def test_the_older_plugins_bad_numbers_are_refused(capacity, ill):
    with pytest.raises(ClaimError, match="node n1"):
        CODEC.devices(node({"volcano.sh/gpu-unhealthy-ids": ill}, capacity=capacity))


# ---------------------------------------------------------------- heartbeat


VOLCANO_HANDSHAKE, HAMI_HANDSHAKE = "volcano.sh/node-vgpu-handshake", "hami.io/node-handshake"


@pytest.mark.parametrize(
    ("text", "state", "at"),
    [
        ("Requesting_2025.08.20 03:04:05", HandshakeState.REQUESTING, AT),
        ("Requesting_2025-08-20 03:04:05", HandshakeState.REQUESTING, AT),
        ("Deleted_2025.08.20 03:04:05", HandshakeState.DELETED, AT),
        ("Reported 2025-08-20 03:04:05 +0000 UTC", HandshakeState.REPORTED, AT),
        ("Reported 2025-08-20 11:04:05.5 +0800 CST", HandshakeState.REPORTED, AT + 0.5),
        (
            "Reported 2025-08-20 03:04:05.123456789 +0000 UTC m=+1234.567890123",
            HandshakeState.REPORTED,
            AT + 0.123457,
        ),
        ("Reported 2025-08-19 20:34:05 -0630 -0630 m=-0.1", HandshakeState.REPORTED, AT),
        ("Reported_2025.08.20 03:04:05", HandshakeState.REPORTED, AT),
        ("Deleted_", HandshakeState.DELETED, None),
        ("Requesting_2025.13.20 03:04:05", HandshakeState.REQUESTING, None),
        ("Requesting_0000-01-01 00:00:00", HandshakeState.REQUESTING, None),
        ("Reported soon", HandshakeState.REPORTED, None),
    ],
)
def test_a_handshake_is_read_in_every_form(text, state, at):
    for codec, key in ((CODEC, VOLCANO_HANDSHAKE), (HAMI_CODEC, HAMI_HANDSHAKE)):
        assert codec.handshake(node({key: text})) == Handshake(key, state, at)


def test_the_older_key_counts_where_the_newer_one_is_not_there():
    old = {"volcano.sh/node-handshake": "Deleted_2025.08.20 03:04:05"}
    assert CODEC.handshake(node(old)).state is HandshakeState.DELETED
    new = old | {VOLCANO_HANDSHAKE: "Requesting_2025.08.20 03:04:05"}
    assert CODEC.handshake(node(new)).state is HandshakeState.REQUESTING
    assert CODEC.handshake(node()) is None


@pytest.mark.parametrize(
    ("key_set", "state", "text"),
    [
        (VOLCANO, HandshakeState.REPORTED, "Reported 2025-08-20 03:04:05 +0000 UTC"),
        (VOLCANO, HandshakeState.REQUESTING, "Requesting_2025.08.20 03:04:05"),
        (HAMI, HandshakeState.DELETED, "Deleted_2025-08-20 03:04:05"),
    ],
)
def test_a_handshake_is_written_as_its_side_does_it(key_set, state, text):
    assert handshake_text(state, AT, key_set) == text


@given(st.sampled_from(HandshakeState), st.integers(0, 2**34), st.sampled_from([VOLCANO, HAMI]))
def test_every_handshake_that_is_written_is_read_back(state, at, key_set):
    text = handshake_text(state, at, key_set)
    key = key_set.handshake[0]
    assert Volcano(key_set).handshake(node({key: text})) == Handshake(key, state, at)


@given(
    st.text()
    | st.tuples(
        st.sampled_from(["Reported ", "Requesting_", "Deleted_"]), st.text("0123456789-.: +mUTC=_")
    ).map("".join)
)
def test_any_text_is_a_handshake_or_a_typed_error(text):
    try:
        handshake = CODEC.handshake(node({VOLCANO_HANDSHAKE: text}))
    except ClaimError as refused:
        assert (refused.key, refused.text) == (VOLCANO_HANDSHAKE, text)  # noqa: PT017
    else:
        assert handshake.state in HandshakeState


# ---------------------------------------------------------------- locks


@pytest.mark.parametrize(
    ("codec", "key", "text", "since", "owner"),
    [
        (CODEC, "hamivgpu", "2025-08-20T03:04:05Z", AT, None),
        (CODEC, "vgpu4pd", "2025-08-20T11:04:05+08:00", AT, None),
        (CODEC, "hamivgpu", "2025-08-20 03:04:05", None, None),
        (CODEC, "hamivgpu", "", None, None),
        (HAMI_CODEC, "hami.io/mutex.lock", "2025-08-20T03:04:05Z", AT, None),
        (
            HAMI_CODEC,
            "hami.io/mutex.lock",
            "2025-08-20T03:04:05Z,ml,train-0",
            AT,
            ("ml", "train-0"),
        ),
        (HAMI_CODEC, "hami.io/mutex.lock", "soon,ml,train-0", None, ("ml", "train-0")),
        (HAMI_CODEC, "hami.io/mutex.lock", "2025-08-20T03:04:05Z,ml", AT, None),
        (HAMI_CODEC, "hami.io/mutex.lock", "2025-08-20T03:04:05Z,,train-0", AT, None),
        (HAMI_CODEC, "hami.io/mutex.lock", "2025-08-20T03:04:05Z,a,b,c", AT, None),
    ],
)
def test_a_lock_is_seen_whether_it_can_be_read_or_not(codec, key, text, since, owner):
    assert codec.locks(node({key: text})) == (NodeLock(key, text, since, owner),)


def test_locks_of_the_other_dialect_are_not_ours():
    every = dict.fromkeys(
        ("hamivgpu", "vgpu4pd", "hami.io/mutex.lock", "volcano.sh/mutex.lock"), ""
    )
    assert [lock.key for lock in CODEC.locks(node(every))] == ["hamivgpu", "vgpu4pd"]
    assert [lock.key for lock in HAMI_CODEC.locks(node(every))] == ["hami.io/mutex.lock"]
    assert CODEC.locks(node()) == ()


@given(
    st.integers(0, 2**34),
    st.none() | st.builds(PodRef, st.just(""), *[st.text(string.ascii_lowercase, min_size=1)] * 2),
)
def test_every_lock_that_is_written_is_read_back(since, owner):
    text = lock_text(since, owner)
    (lock,) = HAMI_CODEC.locks(node({"hami.io/mutex.lock": text}))
    assert (lock.since, lock.owner) == (since, owner and (owner.namespace, owner.name))


@given(st.text() | st.text("0123456789-T:Z+,.ml"))
def test_any_text_is_a_lock(text):
    (lock,) = CODEC.locks(node({"hamivgpu": text}))
    assert lock.text == text
