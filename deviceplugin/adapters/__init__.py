"""What the plugin does for each scheme, behind :mod:`deviceplugin.scheme_adapter`.

:mod:`.served` is the table: the name of an adapter -> how it is made from the flags.
"""
