"""Roots with more folders than are read, most of which dead pods have left."""

import time

from exporter.flags import ExporterOptions
from exporter.main import open_collectors
from tests.support.regions import PODS, a_region, place
from tests.support.waiting import WAIT_SECONDS
from vgpu.sources import shim
from vgpu.sources.node_sources import living_pods

LIVING = PODS[:3]


def test_the_exporter_reads_the_regions_of_all_living_pods(tmp_path, monkeypatch):
    monkeypatch.setattr(shim, "MAX_ENTRIES", 16)
    root, cgroups = tmp_path / "containers", tmp_path / "cgroup"
    root.mkdir()
    for pod in range(200):
        place(root, a_region("v1.2"), pod=pod)
    for uid in LIVING:
        folder = f"kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
        (cgroups / folder).mkdir(parents=True)
    (cgroups / "cgroup.controllers").touch()
    options = ExporterOptions(
        shim_root=(str(root),), path_cgroupfs=str(cgroups), kubelet_log_dir=str(tmp_path / "logs")
    )
    collector = open_collectors(options, None).shim
    collector.begin(0.0)
    collector.finish(time.monotonic() + WAIT_SECONDS)
    read = [file.pod_uid for file in collector.data(0.0).files]
    assert (len(read), set(read[:3])) == (16, set(LIVING))


def test_without_a_cgroup_in_sight_pods_with_a_log_folder_count_as_living(tmp_path):
    (tmp_path / f"team_a_{PODS[1]}").mkdir()
    living = living_pods(str(tmp_path / "no-cgroups"), str(tmp_path))
    assert set(living()) == {PODS[1]}


def test_no_pod_is_living_without_cgroups_and_log_folders(tmp_path):
    assert not living_pods(str(tmp_path), str(tmp_path / "none"))()
    assert not living_pods(str(tmp_path), None)()
