"""The schemes' implementations of :class:`deviceplugin.scheme_adapter.SchemeAdapter`.

:mod:`deviceplugin.builders.registry` is the table: an adapter's name -> its builder.
"""
