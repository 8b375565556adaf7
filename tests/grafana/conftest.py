"""What the clusters of these tests have in common."""

import pytest

from tests.grafana.living_node import running, well


@pytest.fixture(scope="package")
def well_nodes(tmp_path_factory):
    """The nodes on which nothing is wrong, with their exporters: who uses them changes nothing.

    They end with the tests of this folder: what the same process runs then would run beside them.
    """
    nodes = well(tmp_path_factory.mktemp("well"))
    with running(nodes):
        yield nodes
