"""CDI specs that DRA drivers have promised: which are on the node, and what is no evidence."""

import json
import os
import time

import pytest

from tests.support.dra import dra_state
from vgpu.model.facts import CdiDevice
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources import cdi_specs
from vgpu.sources.cdi_specs import CdiSpecs
from vgpu.sources.kubelet import KubeletSource

KIND = "k8s.gpu.nvidia.com/claim"
FIRST, SECOND = f"{KIND}=c1-gpu-1", f"{KIND}=c1-gpu-10"
BOTH = frozenset({FIRST, SECOND})

YAML = """---
cdiVersion: 0.7.0
kind: k8s.gpu.nvidia.com/claim
devices:
- name: c1-gpu-10
  containerEdits:
    env: [CLAIM=c1-gpu-1x]
"""


def spec(*devices, kind=KIND):
    return json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [*devices]})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "cdi"
    made.mkdir()
    return made


def missing(*folders, names=BOTH):
    return CdiSpecs([str(folder) for folder in folders]).missing(names)


def refused(*folders):
    with pytest.raises(SourceError) as error:
        missing(*folders)
    return error.value.reason


def test_without_folders_or_without_names_nothing_is_missing(folder):
    assert missing() == missing(folder, names=frozenset()) == frozenset()


def test_what_stands_in_no_spec_is_missing(folder, tmp_path):
    assert missing(folder, tmp_path / "none") == BOTH  # as after a reboot: the folder is in /run
    (folder / "claim.yaml").write_text(YAML)
    assert missing(folder) == {FIRST}  # gpu-1 is a part of gpu-10, and no device
    other = tmp_path / "etc-cdi"
    other.mkdir()
    (other / "claim.json").write_text(spec({"name": "c1-gpu-1"}))
    assert missing(folder, other) == frozenset()


def test_a_device_of_another_kind_is_another_device(folder):
    (folder / "a.json").write_text(spec({"name": "c1-gpu-1"}, kind="vendor.com/gpu"))
    assert missing(folder) == BOTH


def test_the_runtime_reads_no_other_files(folder):
    (folder / "claim.json.tmp").write_text(spec({"name": "c1-gpu-1"}, {"name": "c1-gpu-10"}))
    assert missing(folder) == BOTH


def test_specs_are_read_again_after_a_change(folder):
    specs = CdiSpecs([str(folder)])
    path = folder / "claim.json"
    assert specs.missing(BOTH) == BOTH
    path.write_text(spec({"name": "c1-gpu-1"}))
    assert specs.missing(BOTH) == {SECOND}
    draft = folder / ".draft"
    draft.write_text(spec({"name": "c1-gpu-1"}, {"name": "c1-gpu-10"}))
    draft.rename(path)
    assert specs.missing(BOTH) == frozenset()
    path.unlink()
    assert specs.missing(BOTH) == BOTH


def test_an_unchanged_folder_is_not_read_again(folder, monkeypatch):
    specs = CdiSpecs([str(folder)])
    (folder / "claim.json").write_text(spec({"name": "c1-gpu-1"}))
    assert specs.missing(BOTH) == {SECOND}
    monkeypatch.setattr(cdi_specs, "read_file", None)
    assert specs.missing(BOTH) == {SECOND}


def test_a_spec_that_cannot_be_read_may_have_any_device(folder, monkeypatch):
    (folder / "other.json").symlink_to("/etc/hostname")
    assert refused(folder) is Reason.NOT_REGULAR_FILE
    (folder / "other.json").unlink()
    os.mkfifo(folder / "pipe.yaml")
    assert refused(folder) is Reason.NOT_REGULAR_FILE
    (folder / "pipe.yaml").unlink()
    (folder / "large.json").write_bytes(b" " * (cdi_specs.FILE_LIMIT + 1))
    assert refused(folder) is Reason.TOO_LARGE
    monkeypatch.setattr(cdi_specs, "TOTAL_LIMIT", 100)
    assert refused(folder) is Reason.TOO_LARGE
    monkeypatch.setattr(cdi_specs, "MAX_FILES", 0)
    assert refused(folder) is Reason.TOO_MANY_FILES
    assert refused(folder / "large.json") is Reason.UNREADABLE


def test_any_bytes_are_a_spec_without_the_device(folder):
    (folder / "broken.json").write_bytes(bytes(range(256)) * 40)
    assert missing(folder) == BOTH


def test_the_kubelets_data_has_what_is_missing_of_prepared_resource_claims(folder, tmp_path):
    devices = {"gpu.nvidia.com": [("node-1", "gpu-0", ["gpu"])]}
    state = tmp_path / "dra_manager_state"
    state.write_bytes(dra_state(("c1", "ml", "train", {"p1"}, devices)))
    for name in ("pods", "containers"):
        (tmp_path / name).mkdir()
    places = (str(tmp_path / "pods"), None, None, 0.0, str(state))
    name = "k8s.example/gpu=gpu-0"
    sample = KubeletSource(*places, cdi_dirs=[str(folder)]).sample(time.time())
    (resource_claim,) = sample.resource_claims
    assert resource_claim.cdi == (CdiDevice("gpu.nvidia.com", "node-1", "gpu-0", name),)
    assert sample.missing_cdi == {name}
    assert KubeletSource(*places).sample(time.time()).missing_cdi == frozenset()
    (folder / "other.json").symlink_to("/etc/hostname")
    unread = KubeletSource(*places, cdi_dirs=[str(folder)]).sample(time.time())
    assert unread.missing_cdi == frozenset()
    assert [rejection.reason for rejection in unread.rejections] == [Reason.NOT_REGULAR_FILE]
