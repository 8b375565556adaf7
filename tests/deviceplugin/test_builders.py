"""From flags to a role: the operator's flags and their defaults reach containers."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from deviceplugin.builders.registry import AdapterInputs, builder_of
from deviceplugin.flags import PluginOptions
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import Phase, PodRef
from vgpu.model.units import MIB

POD = PodRef("uid-1", "ns", "pod")
GPU = Device("GPU-0")
SHARE = Allocation("main", (Share(GPU.uuid, MIB, 300),), Phase.ASSIGNED)


@pytest.mark.parametrize("key_set", ["volcano", "hami"])
@pytest.mark.parametrize(
    ("settings", "env"),
    [
        ({}, None),  # as the originals: limits of cores hold
        ({"volcano_core_policy": "force"}, "force"),
        ({"volcano_core_policy": "disable"}, "disable"),
    ],
)
def test_limits_of_cores_are_lifted_only_where_that_is_configured(key_set, settings, env):
    options = replace(PluginOptions(volcano_dialect=key_set), **settings)
    adapter = builder_of(options.scheme).make(options, AdapterInputs())
    given = adapter.codec.edits(POD, SHARE, {GPU.uuid: GPU}).env
    assert given["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert given.get("GPU_CORE_UTILIZATION_POLICY") == env


@pytest.mark.parametrize("key_set", ["volcano", "hami"])
def test_a_shim_that_is_damaged_while_the_plugin_runs_is_installed_again(tmp_path, key_set):
    """An empty ld.so.preload would load nothing: a container without any limit."""
    source, folder = tmp_path / "libvgpu.so", tmp_path / "host"
    source.write_bytes(b"\x7fELF library")
    options = PluginOptions(
        volcano_dialect=key_set, volcano_shim_library=str(source), volcano_shim_dir=str(folder)
    )
    builder = builder_of(options.scheme)
    paths = builder.make(options, AdapterInputs()).codec.paths
    library, preload = Path(paths.library), Path(paths.preload)
    whole = preload.read_text()
    for damaged in (preload, library):
        damaged.resolve().write_bytes(b"")
        builder.repair(options)
        assert preload.read_text() == whole
        assert library.read_bytes() == source.read_bytes()
    source.unlink()
    with pytest.raises(OSError, match=r"--volcano\.shim-library"):
        builder.repair(options)
