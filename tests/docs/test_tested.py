"""The versions on the page about tested versions are those that the tests use."""

import re

import pytest

from tests.support.bed.gomodules import pinned_version
from tests.support.environment import ROOT

PAGE = (ROOT / "docs" / "tested.md").read_text()
BED = ROOT / "tests" / "support" / "bed" / "go"
VOLCANO = ROOT / "tests" / "cluster" / "originals" / "volcano"

MODULES = {
    "Kubernetes: etcd": (BED / "kube", "k8s.io/kubernetes"),
    "containerd with CDI": (BED / "containerd", "github.com/containerd/containerd"),
    "Helm": (BED / "helm", "helm.sh/helm/v3"),
    "Volcano's scheduler": (VOLCANO, "volcano.sh/volcano"),
}
LOCKS = ("kubernetes-oldest", "runtime")


def row(what):
    """The row of the page that begins so."""
    (found,) = re.findall(rf"^\\| {re.escape(what)}.*$", PAGE, re.MULTILINE)
    return found


@pytest.mark.parametrize("what", MODULES)
def test_a_program_has_the_version_that_is_pinned(what):
    assert f"| {pinned_version(*MODULES[what]).removeprefix('v')} |" in row(what)


@pytest.mark.parametrize("lock", LOCKS)
def test_the_client_has_the_versions_that_are_locked(lock):
    locked = (ROOT / "requirements" / f"{lock}.lock").read_text()
    (version,) = re.findall(r"^kubernetes==(\S+)", locked, re.MULTILINE)
    assert version in row("Python client of Kubernetes")


def test_golden_files_are_as_many_as_the_page_counts():
    checkpoints = list((ROOT / "tests" / "golden" / "kubelet-checkpoints").glob("*.json"))
    assert f"| {len(checkpoints)} files" in row("the kubelet's device checkpoint")
