"""Fixtures of the cluster tests that several files share, beside those of the test bed."""

import pytest

from deploy.manifests import NAMESPACE
from tests.cluster.charting import VALUES, Chart


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
