"""Whatever stands in an annotation, a file or a line, readers give a value or their typed error.

Each reader has a text that it understands; hostile pieces are put into it, before, behind and in
its place. What a good text means is tested with each scheme.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from deviceplugin.gaia import migration
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.model.topology import parse_matrix
from vgpu.placement.volcano import volcano_wishes
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gaia import node as gaia_node
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare import env as gpushare_env
from vgpu.schemes.gpushare import node as gpushare_node
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare import gemini_config
from vgpu.schemes.kubeshare import node as kubeshare_node
from vgpu.schemes.kubeshare.codec import KubeShare, Release
from vgpu.schemes.text import nanoseconds, number, positions, seconds
from vgpu.schemes.volcano import env as volcano_env
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpucli.inspect.legacy import details, summary

REF = PodRef("u1", "ml", "train-0")
GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
CODECS = (
    Volcano(memory_factor=10),
    Volcano(HAMI),
    Gpushare(),
    Gaia(),
    KubeShare(),
    KubeShare(Release.LABELS),
)
RESOURCES = (
    *("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/gpu-memory"),
    *("nvidia.com/gpu", "aliyun.com/gpu-mem", "tencent.com/vcuda-core"),
    "tencent.com/vcuda-memory",
)
LIMITS = dict.fromkeys(RESOURCES, 2)

POD_TEXTS = {
    "volcano.sh/vgpu-ids-new": f"{GPU},NVIDIA,128,10:;{GPU},NVIDIA,1,0:",
    "volcano.sh/devices-to-allocate": f"{GPU},NVIDIA,1,0:",
    "volcano.sh/vgpu-time": "1700000000",
    "volcano.sh/bind-phase": "allocating",
    "hami.io/vgpu-devices-allocated": f"{GPU},NVIDIA,128,10:;{GPU},NVIDIA,1,0:;",
    "hami.io/vgpu-devices-to-allocate": ";;",
    "hami.io/bind-time": "1700000000",
    "volcano.sh/gpu-index": "0",
    "volcano.sh/predicate-time": "1700000000000000000",
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_POD": "4",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    "scheduler.framework.gpushare.allocation": '{"0":{"0":1,"1":1},"1":{"0":2}}',
    "scheduler.framework.gpushare.assume-time": "1700000000000000000",
    "tencent.com/predicate-gpu-idx-0": "0,1",
    "tencent.com/predicate-time": "1700000000000000000",
    "tencent.com/vcuda-core-limit": "50",
    "kubeshare/gpu_request": "0.5",
    "kubeshare/gpu_limit": "1.0",
    "kubeshare/gpu_mem": "1073741824",
    "kubeshare/GPUID": "zxcvb",
    "sharedgpu/gpu_uuid": GPU,
    "sharedgpu/gpu_mem": "1073741824",
    "sharedgpu/gpu_limit": "0.5",
    "aliyun.com/gpu-count": "1",
}
NODE_TEXTS = {
    "volcano.sh/node-vgpu-register": f"{GPU},10,4914,NVIDIA-L40S,true,hami-core:",
    "hami.io/node-nvidia-register": f'[{{"id":"{GPU}","count":10,"devmem":1,"type":"NVIDIA-T4"}}]',
    "volcano.sh/node-vgpu-handshake": "Reported 2026-08-20 03:04:05.6 +0000 UTC m=+0.1",
    "hami.io/node-handshake": "Requesting_2026-08-20 03:04:05",
    "hamivgpu": "2026-08-20T03:04:05Z",
    "hami.io/mutex.lock": "2026-08-20T03:04:05Z,ml,train-0",
    "kubeshare/gpu_info": f"{GPU}:16384,",
    "volcano.sh/gpu-unhealthy-ids": "0,1",
}
DEVICE_IDS = (
    *(f"{GPU}-3", f"{GPU}-memory-3", f"{GPU}-_-3", f"{GPU}::1"),
    *("tencent.com/vcuda-core-3", "tencent.com/vcuda-memory-268435456-3"),
)
VCUDA = vcuda_config.VcudaConfig("u1", 50, "main", "0000:3b:00.0", 2**30, 50, True, (525, 60), True)
TEXTS = {
    gpushare_node.unhealthy_gpus: "0,2",
    kubeshare_node.parse_gpu_info: f"{GPU}:16384,",
}
LINES = {
    parse_matrix: " GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n",
    gaia_node.model_label: "Tesla T4 x",
}
FILES = {
    gemini_config.parse_ports: "1\nml/train 50051\n",
    gemini_config.parse_config: "1\nml/train 0.500000 1.000000 1073741824\n",
    migration.parse_checkpoint: (
        '{"PodGPUMapping":{"u1":{"main":{"Devices":["/dev/nvidia0"],"Cores":50,"Memory":1}}}}'
    ),
    vcuda_config.decode_pids: "\1\0\0\0\2\0\0\0",
    vcuda_config.decode: vcuda_config.encode(VCUDA).decode(),
}


def pod(key="", text=""):
    """A pod with every text that is read, with one of its texts replaced."""
    texts = POD_TEXTS | ({key: text} if key else {})
    names = ("main", "side", "setup")
    kinds = (ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT)
    containers = tuple(map(Container, names, [LIMITS] * 3, kinds))
    return Pod(
        REF,
        node="n1",
        annotations=texts,
        labels=texts,
        containers=containers,
    )


def read_pod(key):
    """All readers of a pod whose annotation and label ``key`` has the text."""

    def read(text):
        object_name = pod(key, text)
        for codec in CODECS:
            yield lambda codec=codec: codec.requests(object_name)
            yield lambda codec=codec: codec.claim(object_name)
        node = Node("n1", allocatable={"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-count": 2})
        yield lambda: kubeshare_node.holder(object_name)
        yield lambda: volcano_wishes(object_name)
        yield lambda: summary([node], [object_name])
        yield lambda: details([node], [object_name])

    return read


def read_node(key):
    """All readers of a node whose annotation ``key`` has the text."""

    def read(text):
        node = Node("n1", annotations={key: text}, capacity={"volcano.sh/gpu-number": 2})
        for codec in CODECS:
            yield lambda codec=codec: codec.devices(node)
            yield lambda codec=codec: codec.locks(node)
            if isinstance(codec, Volcano):
                yield lambda codec=codec: codec.handshake(node)

    return read


def read_id(text):
    for codec in CODECS:
        for resource in RESOURCES:
            yield lambda codec=codec, resource=resource: codec.slot(resource, text)


def read_env(text):
    names = ("CONTAINER", "DEV", "IDX", "POD")
    gpushare = {f"ALIYUN_COM_GPU_MEM_{name}": text for name in names}
    volcano = {"CUDA_DEVICE_MEMORY_LIMIT_0": text, "NVIDIA_VISIBLE_DEVICES": text}
    yield lambda: gpushare_env.limits_from_env(gpushare | volcano)
    yield lambda: volcano_env.memory_limit(volcano, 0)
    yield lambda: volcano_env.visible_uuids(volcano)


def bytes_of(text):
    return text.encode(errors="surrogatepass")


READERS = (
    *((text, read_pod(key)) for key, text in POD_TEXTS.items()),
    *((text, read_node(key)) for key, text in NODE_TEXTS.items()),
    *((text, read_id) for text in DEVICE_IDS),
    *((text, read_env) for text in ("3000m", "3", GPU)),
    *((good, lambda t, f=read: [lambda: f(t, "subject")]) for read, good in TEXTS.items()),
    *((good, lambda t, f=read: [lambda: f(t)]) for read, good in LINES.items()),
    *((good, lambda t, f=read: [lambda: f(bytes_of(t))]) for read, good in FILES.items()),
)

HOSTILE = (
    *("", "-1", "+1", "00", "1e999", "1.5", "9" * 30, "9" * 5_000, str(2**63), str(2**64)),
    *("١٢", "\uff11", "²", "Ⅷ", "\ud800", "\udfff", "\0", "\n", "\r", "\u2028", "é", "%s", "{0}"),
    *("null", "NaN", "Infinity", "true", "[", "[" * 5_000, '{"a":' * 5_000, '"', "\\"),
    *('{"0":{"0":1},"0":{"1":2}}', '{"0":{"0":' + "9" * 5_000 + "}}", '{"0":{"0":1e400}}'),
    *('{"0":null}', '{"٣":{"٣":1}}', "[null]", "[[]]", '[{"id":1}]', '[{"id":"\\ud800"}]'),
    *(f'[{{"id":"{GPU}","count":{value}}}]' for value in ("9" * 5_000, "1e400", "-1", "true")),
    *(",", ":", ";", "-", "[-]", "::", "_-_", ",,", "0001-01-01T00:00:00+23:59"),
    *("9999-12-31T23:59:59-23:59", "0000-00-00 00:00:00", "2026-02-30T00:00:00Z", "Reported"),
)


def answer(reader, text):
    """Let all of a reader's parts read the text; any other exception is the test's failure."""
    for read in reader(text):
        try:
            read()
        except SourceError as error:
            assert len(str(error)) < 1_000  # noqa: PT017


@pytest.mark.parametrize(("good", "reader"), READERS)
def test_a_hostile_piece_anywhere_gives_a_value_or_the_typed_error(good, reader):
    answer(reader, good)
    middle = len(good) // 2
    for piece in HOSTILE:
        for text in (piece, piece + good, good + piece, good[:middle] + piece + good[middle:]):
            answer(reader, text)


@pytest.mark.parametrize(("good", "reader"), READERS)
def test_a_quarter_of_a_mebibyte_is_read_or_refused_at_once(good, reader):
    """As much as all annotations of an object may have. What is quadratic never ends here."""
    for piece in (good, "0", ",", ";", "["):
        answer(reader, (piece * (2**18 // max(1, len(piece))))[: 2**18])


PIECES = st.sampled_from(HOSTILE) | st.text(st.characters(), max_size=6)


@given(st.sampled_from(READERS), st.integers(0, 200), st.integers(0, 5), PIECES)
@example((NODE_TEXTS["hamivgpu"], read_node("hamivgpu")), 4, 0, "\udfff")
def test_any_piece_in_place_of_another_gives_a_value_or_the_typed_error(known, at, length, piece):
    good, reader = known
    answer(reader, good[:at] + piece + good[at + length :])


# ---------------------------------------------------------------- what they have in common


@given(st.integers(0, 2**63 - 1))
def test_a_time_that_was_read_is_written_so_that_it_is_read_again(nanos):
    at = seconds(str(nanos))
    assert at == nanos / 10**9
    if at < 2**63 / 10**9:  # the last float of the range is rounded up, out of it
        assert seconds(nanoseconds(at, "ml/train-0", "key")) == at


@pytest.mark.parametrize("at", [-1.0, float("nan"), float("inf"), 1e300, 2**63 / 10**9])
def test_what_is_no_time_is_not_written(at):
    with pytest.raises(ClaimError) as error:
        nanoseconds(at, "ml/train-0", "key")
    assert (error.value.object_name, error.value.key) == ("ml/train-0", "key")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("7", 7), ("10", 10), ("11", None), ("07", None), ("+7", None), ("²", None)],
)
def test_a_number_is_one_as_go_writes_it_up_to_the_most(text, value):
    assert number(text, 10) == value


def test_a_container_that_is_there_twice_has_no_number():
    assert positions(["a", "b", "a", "c"]) == {"b": 1, "c": 3}


@pytest.mark.parametrize("codec", CODECS, ids=lambda one: f"{one.scheme}")
def test_every_codec_writes_annotations_by_the_same_call(codec):
    """What it cannot say it refuses; the names of the app containers are welcome everywhere."""
    gpu = Device(GPU, 0, 2**34, handles=("zxcvb",), minor=0)
    devices = dict.fromkeys(gpu.names, gpu)
    name = "" if codec.scheme is Scheme.KUBESHARE else "main"
    memory = 2**30 if codec.scheme is not Scheme.VOLCANO else 10 * 2**20
    cores = None if codec.scheme is Scheme.GPUSHARE else 500
    claim = Claim(
        codec.scheme,
        REF,
        "",
        (Allocation(name, (Share(GPU, memory, cores),), Phase.ASSIGNED),),
    )
    assert codec.annotations(claim, devices, ["main"])
    with pytest.raises(ClaimError):
        codec.annotations(structs.replace(claim, allocations=()), devices, ["main"])
