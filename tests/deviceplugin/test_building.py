"""From flags to a role: what the operator said, or left unsaid, reaches containers."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from deviceplugin.building import make_role, mend_shim
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


@pytest.mark.parametrize("dialect", ["volcano", "hami"])
def test_a_shim_that_is_damaged_while_the_plugin_runs_is_put_there_anew(tmp_path, dialect):
    """An empty ld.so.preload would load nothing: a container without any limit."""
    source, folder = tmp_path / "libvgpu.so", tmp_path / "host"
    source.write_bytes(b"\x7fELF library")
    options = Options(
        volcano_dialect=dialect, volcano_shim_library=str(source), volcano_shim_dir=str(folder)
    )
    paths = make_role(options, (), None, (), {}).language.paths
    library, preload = Path(paths.library), Path(paths.preload)
    whole = preload.read_text()
    for damaged in (preload, library):
        damaged.resolve().write_bytes(b"")
        mend_shim(options)
        assert preload.read_text() == whole
        assert library.read_bytes() == source.read_bytes()
    source.unlink()
    with pytest.raises(OSError, match=r"--volcano\.shim-library"):
        mend_shim(options)
