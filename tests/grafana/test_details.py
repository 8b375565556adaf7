"""What is shipped needs no metric that the exporter serves only on request."""

import re
from pathlib import Path

import pytest

from exporter.details import Detail
from exporter.families import OWN_TABLES, process_tables
from tests.support.environment import ROOT
from vgpucli.top import reading as top_reading

NAME = re.compile(r"\b(?:vgpu|process)_[a-z0-9_]+")

SHIPPED = (
    *(ROOT / "grafana/dashboards").glob("*.json"),
    *(ROOT / "grafana/rules").glob("*.yaml"),
    *(ROOT / "deploy/manifests").glob("*.yaml"),
    ROOT / "docs/runbooks",
    Path(top_reading.__file__),
)


def names(details):
    return {family.name for table in process_tables(details) for family in table.families}


def names_in(path):
    files = path.rglob("*.md") if path.is_dir() else (path,)
    return {name for file in files for name in NAME.findall(file.read_text())}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_what_is_shipped_needs_only_the_metrics_that_are_served_by_default(path):
    assert names_in(path) & (names(Detail) - names(())) == set()


def test_all_details_are_all_families():
    assert process_tables(Detail) == OWN_TABLES


@pytest.mark.parametrize("detail", Detail)
def test_each_group_has_a_family(detail):
    groups = {family.detail for table in OWN_TABLES for family in table.families}
    assert detail in groups
    assert len(names((detail,))) >= len(names(()))
