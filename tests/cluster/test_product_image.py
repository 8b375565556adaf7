"""The truth about the product's image: what a pod of it runs is this working tree, and it works."""

import hashlib
import json

import pytest

from deploy.release.source import SourceTree
from tests.support.bed import objects
from vgpu import __version__

LIST = """
import hashlib, json, pathlib, sys
import grpc, kubernetes, vgpu
home = pathlib.Path(vgpu.__file__).parent.parent
print(json.dumps({
    str(file.relative_to(home)): hashlib.sha256(file.read_bytes()).hexdigest()
    for package in sys.argv[1:]
    for file in (home / package).rglob("*")
    if file.is_file() and "__pycache__" not in file.parts
}))
"""
LEAST = {
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""Nobody, who may write to what is mounted and may do nothing else."""


@pytest.fixture
def pod(control_plane, namespace, product_image):
    """Starts a pod of the image: pod("--version"), or with a command of its own."""

    def start(*args, **options):
        pod = objects.pod("product", namespace, image=product_image, **options)
        (container,) = pod["spec"]["containers"]
        container |= {
            "args": list(args),
            "securityContext": LEAST,
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
        return control_plane.client.create(pod)

    return start


@pytest.fixture
def printed(control_plane, pod):
    """What a pod has printed that ran to its end."""

    def run(*args, **options):
        ran = pod(*args, restartPolicy="Never", **options)
        control_plane.client.wait_for(ran, objects.phase("Succeeded"), "Succeeded")
        return control_plane.client.logs(ran)

    return run


def test_it_prints_the_trees_version(printed):
    assert printed("--version").startswith(f"vgpu {__version__} ")


def test_it_holds_the_trees_files_and_all_requirements(printed, product_tree):
    packages = SourceTree(product_tree).packages
    held = json.loads(printed(*packages, command=["python3", "-c", LIST]))
    assert held == {
        str(file.relative_to(product_tree)): hashlib.sha256(file.read_bytes()).hexdigest()
        for package in packages
        for file in (product_tree / package).rglob("*")
        if file.is_file()
    }


def test_prometheus_scrapes_a_pod_of_it(control_plane, pod, prometheus):
    demo = pod("demo", "--web.listen-address=:9394")
    running = control_plane.client.wait_for(demo, objects.ready, "Ready")
    server = prometheus(f"{running['status']['podIP']}:9394")
    server.wait_for("vgpu_container_memory_used_bytes")
    assert server.value("up") == 1
    assert server.value("vgpu_build_info") == 1
