"""The demo's tenants: what two pods get of a simulated GPU through the daemon's own code."""

import pytest

from kubeshare.node_files import CONFIG
from vgpu.model.units import GIB
from vgpu.schemes.kubeshare.gemini_config import SharedPod, format_config
from vgpucli.demo.tokens import (
    NOTEBOOK,
    PERIOD_SECONDS,
    SECOND,
    T4,
    TRAINER,
    WARM_UP_SECONDS,
    TokenSimulation,
)

SHARES = {"trainer-0": (500, 800), "notebook-0": (200, 1000)}


@pytest.fixture
def simulation(tmp_path):
    pods = tuple(SharedPod("sharing", pod, *share, 4 * GIB) for pod, share in SHARES.items())
    (tmp_path / CONFIG).mkdir()
    (tmp_path / CONFIG / T4.uuid).write_bytes(format_config(pods))
    return TokenSimulation(tmp_path)


def shares(simulation, seconds):
    """Of the last window, at this second of the demo."""
    view = simulation.view(int((WARM_UP_SECONDS + seconds) * SECOND))
    assert view.complaint == ""
    return {each.entry.pod: each.window_share for each in view.tenants}


def test_the_pods_of_the_demo_have_the_shares_of_this_test():
    for pod in (TRAINER, NOTEBOOK):
        (container,) = pod.containers
        (share,) = container.shares
        requested = container.cores_request_percent * 10, share.cores_milli
        assert requested == SHARES[pod.ref.name]


def test_two_pods_converge_before_the_demo_begins(simulation):
    """Each gets its request, and of the rest the one that has less."""
    found = shares(simulation, 0)
    assert found == {
        "trainer-0": pytest.approx(0.5, abs=0.02),
        "notebook-0": pytest.approx(0.5, abs=0.02),
    }


def test_a_pod_alone_is_at_its_limit_and_the_other_comes_back_to_its_share(simulation):
    half = PERIOD_SECONDS / 2
    alone = shares(simulation, half + 30)
    assert alone["trainer-0"] == pytest.approx(0.8, abs=0.02)
    assert alone["notebook-0"] == 0
    both = shares(simulation, 2 * half + 25)
    assert both["trainer-0"] == pytest.approx(0.5, abs=0.03)
    assert sum(both.values()) == pytest.approx(1, abs=0.02)
