"""What a sample of the kubelet's leavings holds, piece by piece."""

import json
import subprocess
import sys
import time

import pytest

from tests.support.descriptors import no_descriptors
from tests.support.environment import GOLDEN_FILES, ROOT
from vgpu.model.facts import ContainerName, Grant
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources import kubelet as kubelet_module
from vgpu.sources.kubelet import KubeletSource

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
ID = "ab" * 32


@pytest.fixture
def node(tmp_path):
    """A node with a pod's log folder, a container's link and a real checkpoint."""
    pods = tmp_path / "pods"
    (pods / f"default_web-0_{UID}").mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / f"web-0_default_main-{ID}.log").symlink_to("gone")
    golden = GOLDEN_FILES / "kubelet-checkpoints" / "01.json"
    (tmp_path / "checkpoint").write_bytes(golden.read_bytes())
    return tmp_path


def reasons(sample):
    return [(rejection.object_name, rejection.reason) for rejection in sample.rejections]


def test_folders_links_and_checkpoint_make_one_sample(node):
    source = KubeletSource(str(node / "pods"), str(node / "checkpoint"))
    sample = source.sample(time.time())
    assert sample.pods == {UID: PodRef(UID, "default", "web-0")}
    assert sample.containers == {ID: ContainerName("default", "web-0", "main", UID)}
    assert sample.grants is not None
    assert [(grant.pod_uid, grant.device_ids) for grant in sample.grants] == [("uid-0", ())]


def test_two_pods_of_one_name_leave_the_containers_uid_open(node):
    (node / "pods" / f"default_web-0_{UID[:-1]}0").mkdir()
    sample = KubeletSource(str(node / "pods"), None).sample(time.time())
    assert sample.containers[ID].pod_uid == ""


def test_a_missing_file_is_rejected_and_the_rest_is_read(node):
    source = KubeletSource(str(node / "pods"), str(node / "none"))
    sample = source.sample(time.time())
    assert sample.pods == {UID: PodRef(UID, "default", "web-0")}
    assert sample.grants is None
    assert reasons(sample) == [(str(node / "none"), Reason.ABSENT)]


def test_nothing_at_all_is_an_error_that_names_every_piece(tmp_path):
    source = KubeletSource(str(tmp_path / "pods"), str(tmp_path / "checkpoint"))
    with pytest.raises(SourceError) as refused:
        source.sample(time.time())
    assert refused.value.reason is Reason.ABSENT
    assert str(tmp_path / "pods") in refused.value.detail
    assert str(tmp_path / "checkpoint") in refused.value.detail
    with pytest.raises(SourceError):
        KubeletSource(None, None).sample(time.time())


def test_a_corrupt_checkpoint_withdraws_the_grants_until_it_is_whole_again(node):
    checkpoint = node / "checkpoint"
    good = checkpoint.read_bytes()
    source = KubeletSource(str(node / "pods"), str(checkpoint))
    assert source.sample(time.time()).grants
    checkpoint.write_bytes(good.replace(b"uid-0", b"uid-1"))
    sample = source.sample(time.time())
    assert sample.grants is None
    assert reasons(sample) == [(str(checkpoint), Reason.CHECKSUM_MISMATCH)]
    checkpoint.write_bytes(good[:50])
    assert reasons(source.sample(time.time())) == [(str(checkpoint), Reason.MALFORMED)]
    checkpoint.write_bytes(good)
    assert source.sample(time.time()).grants


def test_a_checkpoint_behind_a_link_is_not_read(node):
    (node / "link").symlink_to(node / "checkpoint")
    sample = KubeletSource(str(node / "pods"), str(node / "link")).sample(time.time())
    assert reasons(sample) == [(str(node / "link"), Reason.NOT_REGULAR_FILE)]


def test_an_enormous_checkpoint_is_not_read(node, monkeypatch):
    monkeypatch.setattr(kubelet_module, "CHECKPOINT_LIMIT", 10)
    sample = KubeletSource(str(node / "pods"), str(node / "checkpoint")).sample(time.time())
    assert reasons(sample) == [(str(node / "checkpoint"), Reason.TOO_LARGE)]


def test_a_file_that_has_not_changed_is_not_parsed_again(node, monkeypatch):
    parsed = []
    real = kubelet_module.parse_checkpoint

    def counted(content, object_name, **options):
        parsed.append(object_name)
        return real(content, object_name, **options)

    monkeypatch.setattr(kubelet_module, "parse_checkpoint", counted)
    source = KubeletSource(str(node / "pods"), str(node / "checkpoint"))
    later = time.time() + 3600
    for _ in range(3):
        assert source.sample(later).grants
    assert len(parsed) == 1


def test_a_pod_that_arrives_while_no_descriptor_is_left_costs_no_name_afterwards(node):
    source = KubeletSource(str(node / "pods"), str(node / "checkpoint"))
    settled = time.time() + 3600
    whole = source.sample(settled)
    new = UID.replace("9", "8")
    (node / "pods" / f"default_web-1_{new}").mkdir()
    with no_descriptors():
        sample = source.sample(settled)
    assert (str(node / "pods"), Reason.EXHAUSTED) in reasons(sample)
    assert (sample.pods, sample.grants) == ({}, whole.grants)
    assert source.sample(settled).pods == whole.pods | {new: PodRef(new, "default", "web-1")}


def test_new_pods_are_seen_in_the_next_sample(node):
    source = KubeletSource(str(node / "pods"), None)
    source.sample(time.time())
    new = UID.replace("9", "8")
    (node / "pods" / f"default_web-1_{new}").mkdir()
    assert new in source.sample(time.time()).pods


def test_pod_resources_without_its_extra_is_an_error_that_names_it(node, monkeypatch):
    monkeypatch.delitem(sys.modules, "vgpu.sources.podresources", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SourceError) as refused:
        KubeletSource(str(node / "pods"), None, "/kubelet.sock")
    assert refused.value.reason is Reason.NOT_INSTALLED
    assert "pip install vgpu[pod-resources]" in refused.value.detail


def test_grpc_is_not_loaded_unless_a_socket_is_named():
    # In a process of its own: other tests load it.
    code = (
        "import sys, vgpu.sources.kubelet as k; k.KubeletSource();"
        "sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_an_answer_that_cannot_be_read_is_rejected_beside_its_grant(node):
    sample = KubeletSource(None, str(node / "checkpoint")).sample(time.time())
    assert sample.grants == (Grant("uid-0", "c`x", "nvidia.com/gpu", (), {}, answered=False),)
    assert [rejection.reason for rejection in sample.rejections] == [Reason.MALFORMED]


def test_a_new_checkpoint_is_used_until_it_is_verified(node):
    path = node / "checkpoint"
    source = KubeletSource(None, str(path), verify_seconds=300)
    good = path.read_bytes()
    assert source.sample(1000.0).grants
    damaged = json.loads(good)
    damaged["Checksum"] += 1
    path.write_text(json.dumps(damaged))
    assert source.sample(1299.0).grants
    with pytest.raises(SourceError) as caught:
        source.sample(1300.0)
    assert caught.value.reason is Reason.CHECKSUM_MISMATCH
    with pytest.raises(SourceError):  # an error is not cached, nor forgotten
        source.sample(1301.0)
    path.write_bytes(good)
    assert source.sample(1302.0).grants


def test_a_first_checkpoint_is_verified(node):
    path = node / "checkpoint"
    damaged = json.loads(path.read_bytes())
    damaged["Checksum"] += 1
    path.write_text(json.dumps(damaged))
    with pytest.raises(SourceError):
        KubeletSource(None, str(path), verify_seconds=300).sample(1000.0)
