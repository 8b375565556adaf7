"""The chart through the real helm: what it renders, and what it refuses.

documents = chart.rendered({"exporter": {"profile": "full"}}, "--namespace=gpu")

And what an installation on a node of the bed needs: its image, and a driver that pods are shown.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from deploy.generate import CHART
from tests.support.bed import product
from tests.support.bed.client import Client, Object
from tests.support.bed.node import Node
from tests.support.environment import ROOT
from tests.support.fake_nvml.build import build
from tests.support.nvml_fake import FakeDriver

OPERATOR = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
"""Kinds of Prometheus Operator."""


SERVED = ("admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy",)
"""What helm learns from an API server, and does not know without one."""

VALUES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "tests" / "deploy" / "values").glob("*.yaml"))
}
"""Sets of the chart's values by their names."""

IMAGE = {"repository": "registry.example.com/vgpu"}


class HelmRefused(Exception):  # noqa: N818 - an answer, not a fault
    """Helm would not; the text is its own."""


class Chart(NamedTuple):
    """Our chart."""

    helm: Path

    def rendered(
        self,
        values: Object,
        *flags: str,
        release: str = "vgpu",
        folder: Path = CHART,
        tests: bool = False,
    ) -> list[Object]:
        """The objects that it makes, or a copy of it in another folder, with an image if the values
        name none; pods of `helm test` only with ``tests``. Raises HelmRefused.
        """
        served = (f"--api-versions={kind}" for kind in SERVED)
        flags = (*flags, *served) if tests else ("--skip-tests", *flags, *served)
        text = self._run("template", {"image": IMAGE} | values, release, str(folder), *flags)
        return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]

    def lint(self, values: Object) -> str:
        """What `helm lint --strict` prints. Raises HelmRefused."""
        return self._run("lint", {"image": IMAGE} | values, "--strict", str(CHART))

    def _run(self, command: str, values: Object, *args: str) -> str:
        ran = subprocess.run(
            [self.helm, command, *args, "--values=-"],
            input=json.dumps(values),
            env={**os.environ, "GOGC": "off"},  # it ends before it has much to collect
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise HelmRefused(ran.stderr + ran.stdout)
        return ran.stdout


def install(client: Client, documents: list[Object]) -> list[Object]:
    """Make the objects, in the order in which helm does."""
    return [client.apply(document) for document in documents]


def uninstall(client: Client, made: list[Object]) -> None:
    """Take away what a namespace's end does not, and wait for the end of what runs."""
    for each in reversed(made):
        client.delete(each, propagation="Foreground")
        client.wait_gone(each)


# ---------------------------------------------------------------- on a node of the bed

DRIVER_ENV = {
    "LD_LIBRARY_PATH": "/driver",
    "NVML_FAKE_STATE": "/driver/nvml.state",
    "NVML_FAKE_CALLS": "/driver/nvml.calls",
}


def driver_for_pods(folder: Path) -> FakeDriver:
    """A driver with its library in a new folder, which a pod of any user can be shown."""
    folder.mkdir()
    folder.chmod(0o755)
    driver = FakeDriver(folder)
    driver.counters.touch()
    driver.counters.chmod(0o666)
    shutil.copy(build(), folder)
    return driver


def with_library(node: Node) -> Node:
    """The node with the files of the shim's library, as a plugin's image would leave them."""
    folder = node.path("/usr/local/vgpu")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libvgpu.so", "ld.so.preload"):
        (folder / name).touch()
    return node


def shown(folders: Mapping[str, tuple[str, str]]) -> Object:
    """Values by which a program is shown the driver; folders: name -> (on the node, in it)."""
    return {
        "extraEnv": [{"name": name, "value": value} for name, value in DRIVER_ENV.items()],
        "extraVolumes": [
            {"name": name, "hostPath": {"path": path}} for name, (path, _) in folders.items()
        ],
        "extraVolumeMounts": [{"name": name, "mountPath": at} for name, (_, at) in folders.items()],
    }


def of_the_bed(node: Node) -> Object:
    """Values that any installation on a node of the bed needs."""
    repository, _, tag = product.REFERENCE.partition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "paths": {"oldShims": ""},  # the node's /tmp is the machine's
        "gpuNodes": {"nodeSelector": {"kubernetes.io/hostname": node.name}},
    }
