"""The third GPU of ``vgpu demo``: two pods of KubeShare share its time by tokens.

``trainer`` requests half of the time and gets four fifths at most; ``notebook`` requests a fifth
and may have all. Both compute without pause, but ``notebook`` rests every other minute: then
``trainer`` is at its limit. While both work, each gets its request, and what is left makes them
equal. What they get is computed by the token daemon's own code, in
``vgpucli/demo/tokens.py``.
"""

from typing import Final

from msgspec import structs

from simulator.demo import make_pod, make_share
from simulator.scenario import Process, Scenario, SimulatedGpu
from simulator.waveform import Shape, Waveform, constant
from vgpu.model.names import Scheme
from vgpu.model.units import GIB, MIB

T4: Final = SimulatedGpu(
    uuid="GPU-2d94c1f7-6a3b-4e58-b0c2-91f5e8d73a16",
    index=2,
    name="Tesla T4",
    pci_bus_id="00000000:CA:00.0",
    memory_bytes=15360 * MIB,
    reserved_bytes=448 * MIB,
    baseline_bytes=16 * MIB,
    idle_watts=10.0,
    limit_watts=70.0,
    sm_hertz=1.59e9,
    memory_hertz=5.001e9,
)

PERIOD_SECONDS: Final = 120.0
"""Time in which ``notebook`` works once and rests once, in seconds."""

WORKS: Final = Waveform(low=0, high=1, period=PERIOD_SECONDS, shape=Shape.BURST)
"""1 while ``notebook`` works."""

TRAINER: Final = make_pod(
    "sharing/trainer-0/trainer",
    Scheme.KUBESHARE,
    (make_share(T4, 6, 80),),
    (
        Process(
            pid=1173309,
            container_pid=9,
            gpu=T4.index,
            data=constant(4 * GIB),
            sm=Waveform(low=0.8, high=0.5, period=PERIOD_SECONDS, shape=Shape.BURST),
        ),
    ),
    cores_request_percent=50,
)
NOTEBOOK: Final = make_pod(
    "sharing/notebook-0/jupyter",
    Scheme.KUBESHARE,
    (make_share(T4, 4, 100),),
    (
        Process(
            pid=1173866,
            container_pid=14,
            gpu=T4.index,
            data=constant(2 * GIB),
            sm=Waveform(low=0, high=0.5, period=PERIOD_SECONDS, shape=Shape.BURST),
        ),
    ),
    cores_request_percent=20,
)


def with_tenants(scenario: Scenario) -> Scenario:
    """The node with this GPU and its pods."""
    return structs.replace(
        scenario,
        gpus=(*scenario.gpus, T4),
        pods=(*scenario.pods, TRAINER, NOTEBOOK),
    )
