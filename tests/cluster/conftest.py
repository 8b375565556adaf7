"""Fixtures of the cluster tests that several files share, beside those of the test bed."""

import pytest

from deploy.manifests import NAMESPACE
from tests.cluster.charting import VALUES, Chart, driver_for_pods
from tests.support.nvml_fake import Device, uuid
from vgpu.model.units import GIB


@pytest.fixture(scope="session")
def chart(tools):
    """Our chart, by the real helm."""
    return Chart(tools.path("helm"))


@pytest.fixture(scope="session")
def sets(chart):
    """Name of each set of values -> what the chart makes of it. Tests only read it."""
    return {
        name: chart.rendered(values, f"--namespace={NAMESPACE}") for name, values in VALUES.items()
    }


@pytest.fixture
def own_node(nodes, product_archive):
    """A node of this test's own, with the product's image, on which no plugin has ever been."""
    node = nodes()
    node.import_image(product_archive)
    return node


@pytest.fixture
def driver(tmp_path):
    """One GPU of 80 GiB, in a driver that a pod can be shown."""
    driver = driver_for_pods(tmp_path / "driver")
    driver.write([Device(uuid(0), total=80 * GIB)])
    return driver
