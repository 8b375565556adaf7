"""The kubelet's grants, from its checkpoint and from pod-resources, as statements."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.ledger.from_kubelet import GrantReader, by_container, identified, visible_devices
from vgpu.model.allocation import Share
from vgpu.model.facts import Grant
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.units import GAIA_MEMORY_BLOCK, GIB, MIB
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.gpushare.env import legacy_refusal
from vgpu.schemes.gpushare.row import UnsizedGpushare
from vgpu.schemes.volcano.codec import HAMI, Volcano

ONE = "GPU-5a1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
TWO = "GPU-b83f0d62-417e-4c9a-a5d8-e06b3f17c942"
MIG = "MIG-0b1c7e3b-90d4-4f26-8e1b-7c2f6d9a4b05"
CODECS = (Volcano(memory_factor=1024), Volcano(HAMI), Gpushare(), Gaia())


class Held(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    container: str
    resource: str


def grant(resource, ids, env=None, uid="u1", container="main"):
    return Grant(uid, container, resource, tuple(ids), env or {})


def unanswered(*words, **more):
    return msgspec.structs.replace(grant(*words, **more), answered=False)


def grant_statements(grants, codecs, source=Source.CHECKPOINT):
    reader = GrantReader(codecs, source)
    readings = [reader.read(*place, its) for place, its in by_container(grants).items()]
    statements = [statement for one in readings for statement in one.statements]
    return statements, [malformed for one in readings for malformed in one.malformed]


def only(*grants, codecs=CODECS, source=Source.CHECKPOINT):
    (statement,), malformed = grant_statements(grants, codecs, source)
    assert malformed == []
    return statement


# ---------------------------------------------------------------- the GPU and the amount


def test_volcanos_gpu_is_that_of_the_answer_not_that_of_the_device_id():
    """The kubelet picks any ID; the plugin goes by the scheduler's annotation."""
    number = grant(
        "volcano.sh/vgpu-number",
        [f"{ONE}-3"],
        {"NVIDIA_VISIBLE_DEVICES": TWO, "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"},
    )
    memory = grant("volcano.sh/vgpu-memory", [f"{ONE}-memory-7", f"{TWO}-memory-1"])
    cores = grant("volcano.sh/vgpu-cores", [f"{ONE}-core-{i}" for i in range(30)])
    statement = only(number, memory, cores)
    assert statement.source is Source.CHECKPOINT
    assert (statement.pod.uid, statement.container) == ("u1", "main")
    assert statement.scheme is Scheme.VOLCANO
    assert statement.shares == (Share(TWO, 2 * GIB, 300),)
    assert dict(statement.slices) == {
        "volcano.sh/vgpu-number": number.device_ids,
        "volcano.sh/vgpu-memory": memory.device_ids,
    }


def test_without_an_answer_ids_only_count():
    """As pod-resources reports it, and with our own plugin's CDI devices."""
    number = grant("volcano.sh/vgpu-number", [f"{ONE}-3", f"{TWO}-1"])
    memory = grant("volcano.sh/vgpu-memory", [f"{ONE}-memory-{i}" for i in range(4)])
    statement = only(number, memory, source=Source.POD_RESOURCES)
    assert statement.source is Source.POD_RESOURCES
    assert statement.shares == (Share("", 4 * GIB), Share("", 4 * GIB))


def test_each_device_has_its_own_limit():
    env = {
        "NVIDIA_VISIBLE_DEVICES": f"{ONE},{TWO}",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "1g",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
    }
    statement = only(grant("nvidia.com/gpu", [f"{ONE}-0", f"{ONE}-1"], env))
    assert statement.scheme is Scheme.VOLCANO
    assert statement.shares == (Share(ONE, GIB), Share(TWO, 3000 * MIB))


def test_gpushares_gpu_is_an_index_and_its_ids_are_units():
    env = {"NVIDIA_VISIBLE_DEVICES": "1", "ALIYUN_COM_GPU_MEM_CONTAINER": "3"}
    ids = [f"{ONE}-_-{i}" for i in range(3)]
    statement = only(grant("aliyun.com/gpu-mem", ids, env))
    assert statement.scheme is Scheme.GPUSHARE
    assert statement.shares == (Share("1", 3 * GIB),)


def test_a_poisoned_answer_gives_no_gpu():
    """gpushare's plugin answers with success, and the container cannot start."""
    ids = [f"{ONE}-_-{i}" for i in range(3)]
    statement = only(grant("aliyun.com/gpu-mem", ids, legacy_refusal(3, 3, 15, GIB)))
    assert statement.shares == (Share("", 3 * GIB),)


def test_gaias_ids_are_percents_and_blocks():
    cores = grant(
        "tencent.com/vcuda-core",
        [f"tencent.com/vcuda-core-{i}" for i in range(50)],
        {"NVIDIA_VISIBLE_DEVICES": ONE},
    )
    blocks = grant(
        "tencent.com/vcuda-memory",
        [f"tencent.com/vcuda-memory-{GAIA_MEMORY_BLOCK}-{i}" for i in range(30)],
    )
    statement = only(cores, blocks)
    assert statement.shares == (Share(ONE, 8053063680, 500),)
    whole = grant(
        "tencent.com/vcuda-core",
        [f"tencent.com/vcuda-core-{i}" for i in range(200)],
        {"NVIDIA_VISIBLE_DEVICES": f"{ONE},{TWO}"},
    )
    assert only(whole).shares == (Share(ONE, None, 1000), Share(TWO, None, 1000))


def test_what_no_system_divides_is_held_whole():
    """NVIDIA's own plugin, whose IDs are UUIDs and are kept to."""
    gpu = only(grant("nvidia.com/gpu", [ONE], {"NVIDIA_VISIBLE_DEVICES": ONE}))
    assert gpu.scheme == "nvidia"
    assert gpu.shares == (Share(ONE, None, 1000),)
    assert gpu.slices == (("nvidia.com/gpu", (ONE,)),)
    instance = only(grant("nvidia.com/mig-1g.10gb", [MIG]), source=Source.POD_RESOURCES)
    assert instance.shares == (Share(MIG, None, 1000),)


def test_a_replica_of_a_time_sliced_gpu_is_a_holding_of_the_gpu_without_an_amount():
    """``<uuid>::<i>`` names the device, unless the answer is that of HAMi's plugin."""
    ids = [f"{ONE}::4"]
    own = only(grant("nvidia.com/gpu", ids, {"NVIDIA_VISIBLE_DEVICES": ONE}))
    assert (own.scheme, own.shares) == ("nvidia", (Share(ONE),))
    shared = {"NVIDIA_VISIBLE_DEVICES": TWO, "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}
    hamis = only(grant("nvidia.com/gpu", ids, shared))
    assert (hamis.scheme, hamis.shares) == (Scheme.VOLCANO, (Share(TWO, GIB),))
    unknown = only(grant("nvidia.com/gpu", ids), source=Source.POD_RESOURCES)
    assert unknown.shares == (Share(ONE),)


def test_a_grant_of_another_resource_makes_no_statement():
    assert grant_statements([grant("rdma/hca", ["mlx5_0"])], CODECS) == ([], [])


def test_what_the_codec_does_not_allow_is_a_value():
    half = grant("tencent.com/vcuda-core", [f"tencent.com/vcuda-core-{i}" for i in range(50)])
    statements, (malformed,) = grant_statements([half], CODECS)
    assert statements == []
    assert (malformed.pod, malformed.container) == (PodRef("u1", "", ""), "main")
    assert "tencent.com/vcuda-memory" in malformed.detail


@given(
    st.sampled_from(
        [
            "volcano.sh/vgpu-number",
            "nvidia.com/gpu",
            "aliyun.com/gpu-mem",
            "tencent.com/vcuda-core",
            "x/y",
        ]
    ),
    st.lists(st.text(max_size=12), max_size=4),
    st.dictionaries(
        st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0"]),
        st.text(max_size=20) | st.sampled_from([ONE, f"{ONE},1", "all", "3000m", "9" * 5000]),
    ),
)
def test_whatever_the_checkpoint_holds_is_read_or_named(resource, ids, env):
    grants = [grant(resource, ids, env)]
    statements, malformed = grant_statements(grants, CODECS)
    assert all(statement.pod.uid == "u1" for statement in statements)
    assert all(one.detail for one in malformed)


def test_names_of_visible_devices():
    def visible(text):
        return visible_devices({"NVIDIA_VISIBLE_DEVICES": text})

    assert visible(f"{ONE}, 1,{MIG}") == (ONE, "1", MIG)
    for text in ("", "all", "void", "none", "no-gpu-has-8138MiB-to-run", f"{ONE},all", "0:1"):
        assert visible(text) == ()
    assert visible_devices({}) == ()


# ---------------------------------------------------------------- pod-resources


def held(*ids, pod="web-0"):
    return {Held("team", pod, "main", "r/gpu"): frozenset(ids)}


def test_pod_resources_without_a_checkpoint_goes_by_a_name_that_only_one_pod_has():
    pods = [PodRef("u1", "team", "web-0"), PodRef("u2", "team", "web-1")]
    assert identified(held("b", "a"), pods) == [unanswered("r/gpu", ("a", "b"))]
    replaced = [*pods, PodRef("u3", "team", "web-0")]
    assert identified(held("a"), replaced) == []
    assert identified(held("a"), []) == []


def test_pod_resources_is_trusted_if_the_checkpoint_agrees():
    """A StatefulSet's pod may be replaced by one of the same name between two reads."""
    pods = [PodRef("u1", "team", "web-0"), PodRef("u2", "team", "web-0")]
    checkpoint = [grant("r/gpu", ["a"]), grant("r/gpu", ["b"], uid="u2")]
    assert identified(held("b"), pods, checkpoint) == [unanswered("r/gpu", ["b"], uid="u2")]
    assert identified(held("c"), pods, checkpoint) == []
    assert identified(held("c"), pods[:1], checkpoint) == []
    same = [grant("r/gpu", ["a"]), grant("r/gpu", ["a"], uid="u2")]
    assert identified(held("a"), pods, same) == []


# ---------------------------------------------------------------- resources under other names

HAMIS = {
    "NVIDIA_VISIBLE_DEVICES": f"{TWO},{ONE}",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    "CUDA_DEVICE_MEMORY_LIMIT_1": "1g",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/vgpu/1b3e.cache",
}


@pytest.mark.parametrize("resource", ["nvidia.com/vgpu", "example.com/gpu", "volcano.sh/my-gpu"])
def test_hamis_answer_identifies_its_share_whatever_its_resource_is_called(resource):
    ids = [f"{ONE}-0", f"{ONE}-1"]
    statement = only(grant(resource, ids, HAMIS))
    assert statement.scheme is Scheme.VOLCANO
    assert statement.shares == (Share(TWO, 3000 * MIB, 300), Share(ONE, GIB, 300))
    assert statement.limits == (3000 * MIB, GIB)
    assert dict(statement.slices) == {resource: tuple(ids)}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "example.com/gpu"])
def test_an_answer_with_a_limit_of_0_lifts_the_limit(resource):
    """HAMi before 2.10 answers so where 0 percent of the memory are requested."""
    env = HAMIS | {"CUDA_DEVICE_MEMORY_LIMIT_0": "0m"}
    statement = only(grant(resource, [f"{ONE}-0", f"{ONE}-1"], env))
    assert [share.memory_bytes for share in statement.shares] == [None, GIB]
    assert statement.limits == (0, GIB)


def test_without_a_device_in_the_answer_each_limit_is_a_share_of_an_unknown_device():
    env = {name: text for name, text in HAMIS.items() if name != "NVIDIA_VISIBLE_DEVICES"}
    statement = only(grant("nvidia.com/vgpu", [f"{ONE}-0"], env))
    assert statement.shares == (Share("", 3000 * MIB, 300), Share("", GIB, 300))


def test_a_renamed_number_beside_a_known_amount_is_one_share():
    number = grant("example.com/vgpu", [f"{ONE}-3"], HAMIS | {"NVIDIA_VISIBLE_DEVICES": TWO})
    memory = grant("volcano.sh/vgpu-memory", [f"{ONE}-memory-7", f"{TWO}-memory-1"])
    assert only(number, memory).shares == (Share(TWO, 3000 * MIB),)


def test_gpushares_answer_identifies_its_share_too():
    env = {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
    }
    ids = [f"{ONE}-_-{i}" for i in range(3)]
    statement = only(grant("example.com/mem", ids, env))
    assert (statement.scheme, statement.shares) == (Scheme.GPUSHARE, (Share("1", 3 * GIB),))
    poisoned = only(grant("example.com/mem", ids, legacy_refusal(3, 3, 15, GIB)))
    assert poisoned.shares == (Share("", 3 * GIB),)
    unsized = only(grant("example.com/mem", ids, env), codecs=(UnsizedGpushare(),))
    assert unsized.shares == (Share("1"),)


@pytest.mark.parametrize(
    ("ids", "env", "unread"),
    [
        ([f"{ONE}-0"], {}, "u1"),  # pod-resources have no answer
        ([f"{ONE}::1"], {"NVIDIA_VISIBLE_DEVICES": ONE}, "u1"),
        (["0"], {"NVIDIA_VISIBLE_DEVICES": ONE}, "u1"),
        (["0000:3b:00.0"], {"PCIDEVICE": "0000:3b:00.0"}, ""),  # a network device
    ],
)
def test_another_grant_that_names_a_gpu_is_no_holding_but_is_known_to_exist(ids, env, unread):
    one = grant("example.com/gpu", ids, env)
    reading = GrantReader(CODECS, Source.POD_RESOURCES).read("u1", "main", {one.resource: one})
    assert (reading.statements, reading.unread) == ((), unread)
