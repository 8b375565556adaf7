"""The lint over the family tables: it passes ours and catches what promtool does not."""

import pytest

from deviceplugin.metrics import TABLES as PLUGIN_TABLES
from exporter.compat.tables import SETS
from exporter.families import OWN_TABLES
from scheduler.metrics import TABLES as SCHEDULER_TABLES
from tests.support.metrics_lint import lint
from vgpu.metrics.family import Family, FamilyTable, MetricType


def complaints(name="vgpu_x_bytes", help_="Help.", labels=(), kind=MetricType.GAUGE, unit="bytes"):
    family = Family(name, kind, help_, lambda row: 1, unit=unit)
    return lint([FamilyTable("t", lambda v: (), labels, lambda row: (), (family,))])


def test_our_own_families_are_clean():
    assert lint(OWN_TABLES) == []


def test_the_device_plugins_families_are_clean():
    assert lint(PLUGIN_TABLES) == []
    assert lint(SCHEDULER_TABLES) == []


@pytest.mark.parametrize("breakdown", [False, True])
@pytest.mark.parametrize("name", list(SETS))
def test_each_compatibility_set_is_valid_beside_our_own_families(name, breakdown):
    assert lint((*OWN_TABLES, *SETS[name](breakdown)), prefix="") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "vgpu_x_mib", "unit": ""}, "base units"),
        ({"name": "vgpu_x_total"}, "does not end in _total"),
        ({"kind": MetricType.COUNTER}, "a counter ends in _total"),
        ({"name": "vgpu_x_seconds"}, "ends in _bytes"),
        ({"unit": ""}, "declare its unit"),
        ({"unit": "furlongs"}, "unknown unit"),
        ({"help_": ""}, "sentence"),
        ({"labels": ("node",)}, "scrape target"),
        ({"labels": ("Uuid",)}, "lower case"),
        ({"labels": ("a", "a")}, "twice"),
        ({"labels": ("__a",)}, "no label name"),
        ({"name": "other_bytes"}, "begin with"),
        ({"name": "vgpu-x_bytes"}, "not a metric name"),
    ],
)
def test_a_broken_rule_is_named(change, words):
    assert any(words in complaint for complaint in complaints(**change))


def test_one_series_of_a_program_may_name_its_node():
    assert complaints(name="vgpu_x_info", labels=("node",), unit="") == []
    assert complaints(name="vgpu_x_info", labels=("instance",), unit="") != []


def test_a_family_declared_twice_is_named():
    family = Family("vgpu_x_bytes", MetricType.GAUGE, "Help.", lambda row: 1, unit="bytes")
    twice = FamilyTable("t", lambda v: (), (), lambda row: (), (family, family))
    assert lint([twice]) == ["vgpu_x_bytes: declared twice"]
