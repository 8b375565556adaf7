"""docs/architecture.md and docs/where-to-find-what.md lead to what is there."""

import itertools
import re
import tomllib

from tests.support.defects import no_defects
from tests.support.environment import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = PAGE.partition("## Layers")[2].split("```")[1]
TABLE = (ROOT / "docs" / "where-to-find-what.md").read_text()

LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
MODULE = re.compile(r"vgpu(?:\.\w+)+|\bexporter\b|\breconciler\b|\bdeviceplugin\b")

WANTED = {
    "Allocate",
    "an annotation patch",
    "a new scheme",
    "a new source",
    "a new metric",
    "a new rule of the reconciler",
    "an API kind",
    "a flag",
    "an alert",
    "quotas of namespaces",
    "the token switch: which tenant of a GPU gets its token next, and for how long",
    "gpu-manager's choice of GPUs by topology",
    "limits for clients of our web servers",
    "the kubelet's checkpoint",
    "the layout of a shared region, and one that is unknown",
    "the reservation that a Binding writes on the pod",
    "what makes a pod evictable",
}


def rows():
    for line in TABLE.splitlines():
        if line.startswith("| ") and not line.startswith(("| what |", "| --- |")):
            what, where = line.strip("| ").split(" | ")
            yield what, where


def test_the_table_answers_where_each_thing_is():
    assert {what for what, _ in rows()} >= WANTED


@no_defects
def test_each_path_of_the_table_is_there_and_is_called_what_it_is():
    for what, where in rows():
        links = LINK.findall(where)
        if not links:
            yield f"{what}: no link"
        for name, target in links:
            path = (ROOT / "docs" / target).resolve()
            if not path.exists():
                yield f"{what}: no {target}"
            elif name != "language.md" and path != ROOT / name:
                yield f"{what}: {name} is not {target}"


def _module_exists(name):
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@no_defects
def test_the_picture_has_only_modules_that_are_there():
    for module in set(MODULE.findall(PICTURE)):
        if not _module_exists(module):
            yield module


def _order():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    for depth, layer in enumerate(layers):
        for module in re.split(r"[|: ]+", layer):
            yield module, depth


@no_defects
def test_the_picture_has_the_order_that_is_checked():
    order = dict(_order())
    lines = [MODULE.findall(line) for line in PICTURE.splitlines()]
    depths = [[order[module] for module in line if module in order] for line in lines]
    known = [line for line in depths if line]
    for above, below in itertools.pairwise(known):
        if max(above) > min(below):
            yield f"layers {above} stand above {below}"
