"""What of Volcano's scheduler decides which field of a Queue limits: its plugins and its version.

``capacity`` compares what a queue has with its ``capability``, with ``enableHierarchy`` also that
of each queue above it, and uses ``deserved`` and ``guarantee``. ``proportion``, which the chart's
configuration has, compares the ``capability`` of the queue alone, and divides by weights: it does
not read ``deserved``. Without either nothing is compared (volcano-sh/volcano ed72c7c8,
``pkg/scheduler/plugins/{capacity,proportion}``). Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from vgpu.io.yaml_documents import NotYamlError, yaml_document

CAPACITY: Final = "capacity"
PROPORTION: Final = "proportion"

COUNTS_DEVICES: Final = (1, 13)
"""The first version that counts memory and cores of vGPUs in queues; before it they are ignored
(volcano-sh/volcano#4168)."""


class VolcanoScheduler(msgspec.Struct, frozen=True):
    """Volcano's scheduler, as far as it was read.

    Attributes:
        plugins: those of ``capacity`` and ``proportion`` that it runs; None if unknown.
        is_hierarchical: whether ``capacity`` compares the queues above a queue, too.
        version: major and minor version, by the tag of its image; None if unknown.
        place: the ConfigMap of its configuration, for people.
        problem: why the configuration is unknown, for people; "" if it was read.
    """

    plugins: frozenset[str] | None = None
    is_hierarchical: bool = False
    version: tuple[int, int] | None = None
    place: str = ""
    problem: str = "the configuration of Volcano's scheduler was not read"

    @property
    def limits(self) -> bool:
        """Whether a queue's capability may limit: it does not if no plugin compares it."""
        return self.plugins is None or bool(self.plugins)

    @property
    def may_be_hierarchical(self) -> bool:
        """Whether the limits of the queues above a queue may hold for it."""
        return self.plugins is None or self.is_hierarchical

    @property
    def ignores_devices(self) -> bool:
        """Whether it certainly ignores memory and cores of vGPUs in queues."""
        return self.version is not None and self.version < COUNTS_DEVICES

    @property
    def text(self) -> str:
        """The version and the plugins, for people."""
        number = "of unknown version" if self.version is None else "{}.{}".format(*self.version)
        if self.plugins is None:
            return f"Volcano's scheduler {number}, plugins unknown ({self.problem})"
        names = " and ".join(sorted(self.plugins)) or "neither capacity nor proportion"
        hierarchy = " with hierarchy" if self.is_hierarchical else ""
        return f"Volcano's scheduler {number} with {names}{hierarchy} ({self.place})"


_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)")


def version_of(tag: str) -> tuple[int, int] | None:
    """Major and minor version of an image's tag, such as ``v1.12.2``; None of another tag."""
    found = _VERSION.match(tag)
    return (int(found[1]), int(found[2])) if found else None


def volcano_scheduler(text: str, place: str, tag: str = "") -> VolcanoScheduler:
    """The scheduler with this configuration; never raises."""
    version = version_of(tag)
    try:
        document = yaml_document(text)
    except NotYamlError:
        return VolcanoScheduler(version=version, problem=f"{place} cannot be read: not YAML")
    if not isinstance(document, dict) or not isinstance(document.get("tiers"), list):
        return VolcanoScheduler(version=version, problem=f"{place} cannot be read: no list tiers")
    names: set[str] = set()
    is_hierarchical = False
    for plugin in _plugins(document):
        name = plugin.get("name")
        if name in (CAPACITY, PROPORTION):
            names.add(name)
        if name == CAPACITY:
            is_hierarchical |= plugin.get("enableHierarchy") is True
    return VolcanoScheduler(frozenset(names), is_hierarchical, version, place, "")


def _plugins(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The plugins of all tiers; what is none is left out."""
    tiers = [each for each in document["tiers"] if isinstance(each, dict)]
    lists = [each.get("plugins") for each in tiers]
    plugins = [one for each in lists if isinstance(each, list) for one in each]
    return [one for one in plugins if isinstance(one, dict)]
