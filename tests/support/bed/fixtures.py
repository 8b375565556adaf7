"""A real Kubernetes as fixtures; what each gives, the modules beside this one describe in detail.

Control planes and the node are started once and shared: a test has its own namespace in them, and
leaves the shared node Ready. What kills or reboots nodes makes its own with ``nodes``.
"""

import itertools
from contextlib import ExitStack
from functools import cache

import pytest

from tests.support.bed import crds, product
from tests.support.bed import tools as bed_tools
from tests.support.bed.cluster import start_cluster
from tests.support.bed.fleet import start_fleet
from tests.support.bed.images import bed_images
from tests.support.bed.monitoring import Alertmanager, Prometheus
from tests.support.bed.node import Node
from tests.support.bed.population import Population
from tests.support.bed.workplace import Workplace
from tests.support.environment import missing, required_root, required_tool
from vgpu.sources.runtime import HOST_PID_NAMESPACE

PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""What a node needs of the machine -> the Debian package that has it."""


@pytest.fixture(scope="session")
def tools():
    """The programs of Kubernetes."""
    required_root()
    try:
        return bed_tools.ensure()
    except bed_tools.ToolsMissing as error:
        missing(str(error))


@pytest.fixture(scope="session")
def workplace(tools):
    """This session's own folder, bridge and addresses."""
    required_tool("ip", PROGRAMS["ip"])
    with Workplace() as place:
        yield place


@pytest.fixture(scope="session")
def api(workplace, tools):
    """An API server with RBAC and no controllers: nothing happens but what a test does."""
    with start_cluster(workplace, tools, name="api", controllers=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def control_plane(workplace, tools):
    """An API server with controllers and a scheduler."""
    shares = ("--feature-gates=DRAConsumableCapacity=true",)  # DRA: shares of one device
    flags = dict.fromkeys(("kube-apiserver", "kube-scheduler"), shares)
    with start_cluster(
        workplace, tools, name="control-plane", controllers=True, flags=flags
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def images(workplace):
    """Archives of the images that a node of the bed starts with."""
    for program, package in PROGRAMS.items():
        required_tool(program, package)
    return bed_images(workplace.folder)


@pytest.fixture(scope="session")
def node(control_plane, images):
    """A node of ``control_plane`` with containerd 1.7, which knows CDI."""
    with Node(control_plane, images) as node:
        yield node


@pytest.fixture
def nodes(control_plane, images):
    """Makes nodes of ``control_plane`` for this test alone: nodes(containerd="1.6")."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Node(control_plane, images, **options))


@pytest.fixture
def namespace(control_plane):
    """The name of a new namespace of ``control_plane``."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def api_namespace(api):
    """The name of a new namespace of ``api``."""
    with api.namespace() as name:
        yield name


@pytest.fixture
def host_proc(node):
    """What stands for /proc on a node that is a machine of its own.

    The bed's node has a namespace of its own for its processes, and our programs see that these
    are not all. Here they are made out to be: its real processes, below what only a real host has.
    """
    folder = "/var/lib/host-proc"
    node.run(["mkdir", "-p", f"{folder}/self/ns"])
    node.run(["ln", "-sfn", HOST_PID_NAMESPACE, f"{folder}/self/ns/pid"])
    node.run(["ln", "-sfn", "/proc/sys", f"{folder}/sys"])  # the boot's id

    def fill():
        for pid in node.run(["ls", "/proc"]).split():
            if pid.isdecimal():
                node.run(["ln", "-sfn", f"/proc/{pid}", f"{folder}/{pid}"])
        return folder

    yield fill
    node.run(["rm", "-r", folder])


@pytest.fixture(scope="session")
def product_tree(workplace):
    """A copy of this working tree's sources, that nobody edits while the tests run."""
    return product.sources(workplace.folder / "product")


@pytest.fixture(scope="session")
def product_archive(workplace, product_tree):
    """The product's image as an archive, for ``node.import_image``."""
    return product.build(workplace.folder / "product.tar", product_tree)


@pytest.fixture(scope="session")
def product_image(node, product_archive):
    """The product's image on ``node``: what a pod there calls it."""
    node.import_image(product_archive)
    return product.REFERENCE


@pytest.fixture(scope="session")
def crd_files(tools):
    """The files that define SharePods and Prometheus Operator's kinds, for ``crds.load``."""
    try:
        return [crds.SHARE_POD, *crds.prometheus_operator()]
    except bed_tools.ToolsMissing as error:
        missing(str(error))


@pytest.fixture(scope="module")
def fleet(workplace, tools):
    """Starts fleets: fleet(100, 500, scheme="gpushare"). The same one again in the same module."""
    with ExitStack() as stack:

        @cache
        def start(nodes, pods, scheme="volcano", **options):
            population = Population(nodes, pods, scheme)
            return stack.enter_context(start_fleet(workplace, tools, population, **options))

        yield start


@pytest.fixture
def alertmanager(tmp_path):
    """Debian's Alertmanager."""
    with Alertmanager(tmp_path / "alertmanager") as server:
        yield server


@pytest.fixture
def prometheus(tmp_path):
    """Starts Debian's Prometheus: prometheus("127.0.0.1:9394", rules=[file], ...)."""
    with ExitStack() as stack:
        folders = (tmp_path / f"prometheus-{number}" for number in itertools.count())

        def start(*targets, **options):
            return stack.enter_context(Prometheus(next(folders), *targets, **options))

        yield start
