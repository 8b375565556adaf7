"""Limit files on disk, within reach of tenants."""

import os
import time

import pytest

from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB
from vgpu.schemes.gaia import vcuda_config
from vgpu.sources import limits as limits_module
from vgpu.sources.limits import LimitSource

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
ID = "ab" * 32
GPU = "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"
LINE = b"1\nns/name 0.500000 1.000000 1073741824\n"


def vcuda(**fields):
    example = {
        "pod_uid": UID,
        "limit_percent": 0,
        "container": "main",
        "bus_id": "0000:3b:00.0",
        "memory_bytes": 8053063680,
        "utilization_percent": 50,
        "hard_limit": True,
        "driver": (470, 57),
        "enable": True,
    }
    return vcuda_config.encode(vcuda_config.VcudaConfig(**example | fields))


@pytest.fixture
def node(tmp_path):
    (tmp_path / "vm").mkdir()
    (tmp_path / "config").mkdir()
    return tmp_path


def sample(node):
    return LimitSource({"gaia": str(node / "vm"), "kubeshare": str(node / "config")}).sample()


def place(node, content, pod=UID, container=ID):
    folder = node / "vm" / pod / container
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vcuda.config"
    path.write_bytes(content)
    return path


def refusals(limit_sample):
    return [(rejection.object_name, rejection.reason) for rejection in limit_sample.rejections]


def test_gpu_managers_limits_are_read_by_container_and_gpu(node):
    path = place(node, vcuda())
    (node / "vm" / UID / "vcuda.sock").touch()
    (node / "vm" / UID / "not-yet").mkdir()
    limit_sample = sample(node)
    assert limit_sample.rejections == ()
    assert limit_sample.limits == (
        LimitFile(
            scheme=Scheme.GAIA,
            path=str(path),
            pod_uid=UID,
            container="main",
            container_id=ID,
            pci_bus_id="0000:3b:00.0",
            memory_bytes=8053063680,
            cores_percent=50,
            cores_request_percent=50,
        ),
    )


def test_whole_gpus_have_no_limit(node):
    place(node, vcuda(utilization_percent=200, enable=False))
    (limit,) = sample(node).limits
    assert (limit.memory_bytes, limit.cores_percent) == (None, None)
    assert limit.cores_request_percent == 200


def test_a_soft_core_limit_is_above_the_request(node):
    place(node, vcuda(limit_percent=80, hard_limit=False))
    (limit,) = sample(node).limits
    assert (limit.cores_percent, limit.cores_request_percent) == (80, 50)


def test_a_folder_that_is_named_after_the_container_has_no_id(node):
    place(node, vcuda(container=""), container="main")
    (limit,) = sample(node).limits
    assert (limit.container, limit.container_id) == ("main", "")


def test_kubeshares_limits_are_read_by_pod_and_gpu(node):
    path = node / "config" / GPU
    path.write_bytes(LINE)
    limit_sample = sample(node)
    assert limit_sample.rejections == ()
    assert limit_sample.limits == (
        LimitFile(
            scheme=Scheme.KUBESHARE,
            path=str(path),
            namespace="ns",
            pod="name",
            device=GPU,
            memory_bytes=GIB,
            cores_percent=100,
            cores_request_percent=50,
        ),
    )


def test_systems_that_are_not_installed_have_no_limits(tmp_path):
    limit_sample = sample(tmp_path)
    assert (limit_sample.limits, limit_sample.rejections) == ((), ())


def test_one_bad_file_is_refused_and_the_others_are_read(node):
    good = place(node, vcuda())
    bad = {
        "truncated": vcuda()[:12],
        "too-long": vcuda() + b"x",
        "empty": b"",
        "hostile": vcuda().replace(b"main", b'a\n"\xff'),
        "anothers": vcuda(pod_uid=UID.replace("9", "8")),
    }
    for name, content in bad.items():
        place(node, content, container=name)
    folder = node / "vm" / UID
    for name in ("link", "fifo", "folder"):
        (folder / name).mkdir()
    (folder / "link/vcuda.config").symlink_to(good)
    os.mkfifo(folder / "fifo/vcuda.config")
    (folder / "folder/vcuda.config").mkdir()
    (folder / "linked").symlink_to(folder / ID)
    (node / "config" / GPU).write_bytes(b"2\n")
    (node / "config" / "lost+found").mkdir()
    (node / "config" / GPU.replace("a", "b")).symlink_to(good)
    limit_sample = sample(node)
    assert [limit.path for limit in limit_sample.limits] == [str(good)]
    assert sorted(refusals(limit_sample)) == sorted(
        [
            (str(folder / "truncated/vcuda.config"), Reason.MALFORMED),
            (str(folder / "too-long/vcuda.config"), Reason.TOO_LARGE),
            (str(folder / "empty/vcuda.config"), Reason.MALFORMED),
            (str(folder / "hostile/vcuda.config"), Reason.MALFORMED),
            (str(folder / "anothers/vcuda.config"), Reason.MALFORMED),
            (str(folder / "link/vcuda.config"), Reason.NOT_REGULAR_FILE),
            (str(folder / "fifo/vcuda.config"), Reason.NOT_REGULAR_FILE),
            (str(folder / "folder/vcuda.config"), Reason.NOT_REGULAR_FILE),
            (str(node / "config" / GPU), Reason.MALFORMED),
            (str(node / "config/lost+found"), Reason.BAD_UUID),
            (str(node / "config" / GPU.replace("a", "b")), Reason.NOT_REGULAR_FILE),
        ]
    )


def test_a_config_without_end_is_too_large(node):
    (node / "config" / GPU).write_bytes(b"1" * (256 * 1024 + 1))
    assert refusals(sample(node)) == [(str(node / "config" / GPU), Reason.TOO_LARGE)]


def test_more_folders_than_are_read_is_a_rejection(node, monkeypatch):
    monkeypatch.setattr(limits_module, "MAX_ENTRIES", 3)
    for number in range(5):
        place(node, vcuda(pod_uid=f"pod-{number}"), pod=f"pod-{number}")
    limit_sample = sample(node)
    assert len(limit_sample.limits) == 3
    assert refusals(limit_sample) == [(str(node / "vm"), Reason.TOO_MANY_FILES)]


def test_of_more_folders_than_are_read_those_of_living_pods_come_first(node, monkeypatch):
    monkeypatch.setattr(limits_module, "MAX_ENTRIES", 3)
    for number in range(5):
        place(node, vcuda(pod_uid=f"pod-{number}"), pod=f"pod-{number}")
    for number in range(5):
        source = LimitSource({"gaia": str(node / "vm")}, living=lambda uid=f"pod-{number}": {uid})
        limit_sample = source.sample()
        assert limit_sample.limits[0].pod_uid == f"pod-{number}"
        assert len(limit_sample.limits) == 3


def test_a_tenants_many_folders_are_not_all_read(node, monkeypatch):
    monkeypatch.setattr(limits_module, "MAX_CONTAINERS", 3)
    place(node, vcuda(pod_uid="pod"), pod="pod")
    for number in range(5):
        (node / "vm" / "pod" / str(number)).mkdir()
    assert (str(node / "vm" / "pod"), Reason.TOO_MANY_FILES) in refusals(sample(node))


def test_changes_are_seen_and_what_did_not_change_is_not_parsed_again(node, monkeypatch):
    decoded = []
    real = vcuda_config.decode

    def counted(content, object_name):
        decoded.append(object_name)
        return real(content, object_name)

    monkeypatch.setattr(vcuda_config, "decode", counted)
    path = place(node, vcuda())
    source = LimitSource({"gaia": str(node / "vm"), "kubeshare": str(node / "config")})
    later = time.time() + 3600
    monkeypatch.setattr(limits_module.time, "time", lambda: later)
    for _ in range(3):
        assert source.sample().limits[0].cores_percent == 50
    assert len(decoded) == 1
    path.write_bytes(vcuda(utilization_percent=60))
    assert source.sample().limits[0].cores_percent == 60
    path.unlink()
    assert source.sample().limits == ()
