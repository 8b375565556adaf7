"""YAML without duplicate keys, of which PyYAML would let the last one win unseen. Pure."""

from collections.abc import Hashable
from typing import Any

import yaml


class DuplicateKeyError(yaml.constructor.ConstructorError):
    """A key stands twice in one mapping; ``problem_mark`` is the second place."""


class UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that raises :class:`DuplicateKeyError`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping of a node."""
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        values = set()
        for key in keys:
            if key.value in values:
                raise DuplicateKeyError(None, None, "a key appears twice", key.start_mark)
            values.add(key.value)
        return super().construct_mapping(node, deep)
