"""Rules by which pods with equal labels share no GPU with each other. Pure.

These are Volcano's ``deviceshare.GPUExclusiveRules``: a pod with all labels of a rule shares no GPU
with another pod that has them. Pods of different rules, and pods of no rule, share GPUs.
"""

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec
from msgspec import structs

from vgpu.placement.candidate import PlacementWishes


class ExclusiveRule(msgspec.Struct, frozen=True):
    """One rule; ``labels`` are keys and values, sorted by key."""

    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """The rule ``<key>=<value>,<key>=<value>``. Raises ValueError."""
        pairs = [part.strip().partition("=") for part in text.split(",")]
        labels = {key: value for key, _, value in pairs}
        if not all(key and sign for key, sign, _ in pairs) or len(labels) < len(pairs):
            raise ValueError(f"{text!r} is not KEY=VALUE, joined by commas")
        return cls(tuple(sorted(labels.items())))

    @property
    def name(self) -> str:
        """The group of its pods. No PodGroup has an equals sign in its name."""
        return ",".join(f"{key}={value}" for key, value in self.labels)

    def is_for(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels has all of the rule's."""
        return all(labels.get(key) == value for key, value in self.labels)


def with_rules(
    wishes: PlacementWishes, labels: Mapping[str, str], rules: Iterable[ExclusiveRule]
) -> PlacementWishes:
    """The wishes of a pod with these labels, with the rules that are for it."""
    names = tuple(dict.fromkeys(rule.name for rule in rules if rule.is_for(labels)))
    if not names:
        return wishes
    groups, apart = (*wishes.groups, *names), (*wishes.apart, *names)
    return structs.replace(wishes, groups=groups, apart=apart)
