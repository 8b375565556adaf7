"""What processes with Gemini's hook get of a GPU, and what is counted for them.

Formulas of :mod:`kubeshare.tokens.scheduler` and the figures of docs/tokens.md, on a virtual clock.
"""

import pytest

from tests.kubeshare.tokens.virtual_hooks import MS, SECOND, HookSimulation, busy

WINDOW = 10 * SECOND


@pytest.mark.parametrize("limit", [500, 1000])
def test_a_pod_that_keeps_its_tokens_gets_no_more_than_its_limit(limit):
    """The other one gets what it requests, and the page of metrics shows what is true."""
    simulation = HookSimulation({"liar": (500, 500), "honest": (500, limit)})
    liar, honest = simulation.liar("liar"), simulation.hook("honest")
    simulation.start(honest, busy(honest, 2 * MS))
    simulation.start(liar, liar.keeps())
    simulation.run(4 * WINDOW)
    shares = {name: simulation.share(name, WINDOW, 4 * WINDOW) for name in simulation.kernels}
    assert shares["liar"] <= 0.51
    assert shares["honest"] >= 0.48
    view = simulation.view("liar")
    assert view.window_share == pytest.approx(
        simulation.share("liar", 3 * WINDOW, 4 * WINDOW), 0.02
    )
    kept = simulation.share("liar", 0, 4 * WINDOW) * 4 * WINDOW
    assert view.held_time == pytest.approx(kept, 0.02)
    assert view.counts.used < 0.6 * kept  # what it reports
    assert view.counts.unreturned == 0
