"""The schemes that the plugin serves: the builder of each adapter, by the adapter's name.

The name stands in the scheme's row (:attr:`vgpu.schemes.row.SchemeRow.adapter`).
"""

from collections.abc import Mapping
from typing import Final

from deviceplugin.builders.builder import AdapterBuilder
from deviceplugin.builders.gaia import GAIA_BUILDER
from deviceplugin.builders.gpushare import GPUSHARE_BUILDER
from deviceplugin.builders.volcano import VOLCANO_BUILDER
from vgpu.model.names import Scheme
from vgpu.schemes.registry import registry

BUILDERS: Final[Mapping[str, AdapterBuilder]] = {
    "volcano": VOLCANO_BUILDER,
    "gpushare": GPUSHARE_BUILDER,
    "gaia": GAIA_BUILDER,
}


def builder_of(scheme: Scheme) -> AdapterBuilder:
    """The builder of a scheme's adapter. Raises KeyError for a scheme that is not served."""
    row = registry().of(scheme)
    return BUILDERS[row.adapter if row else ""]
