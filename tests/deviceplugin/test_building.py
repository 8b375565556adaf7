"""From flags to a role: what the operator said, or left unsaid, reaches containers."""

import pytest
from msgspec.structs import replace

from deviceplugin.building import make_role
from deviceplugin.flags import Options
from vgpu.model import Allocation, Device, Phase, PodRef, Share
from vgpu.units import MIB

POD = PodRef("uid-1", "ns", "pod")
CARD = Device("GPU-0")
SHARE = Allocation("main", (Share(CARD.uuid, MIB, 300),), Phase.ASSIGNED)


@pytest.mark.parametrize("dialect", ["volcano", "hami"])
@pytest.mark.parametrize(
    ("said", "env"),
    [
        ({}, None),  # as the originals: limits of cores hold
        ({"volcano_core_policy": "force"}, "force"),
        ({"volcano_core_policy": "disable"}, "disable"),
    ],
)
def test_limits_of_cores_are_lifted_only_where_that_is_said(dialect, said, env):
    options = replace(Options(volcano_dialect=dialect), **said)
    role = make_role(options, (), None, (), {})
    given = role.language.edits(POD, SHARE, {CARD.uuid: CARD}).env
    assert given["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert given.get("GPU_CORE_UTILIZATION_POLICY") == env
