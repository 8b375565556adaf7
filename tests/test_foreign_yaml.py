"""YAML of others, in a ConfigMap or a file: what does not fit its tag is a problem, no crash."""

import pytest
from click import ClickException

from reconciler.config.settings import ConfigError, parse
from scheduler.check_config.command import _findings
from vgpu.io.unique_keys import UniqueKeyLoader
from vgpu.io.yaml_documents import NotYamlError, yaml_document, yaml_documents
from vgpu.kube.dump import items_of
from vgpu.model.reasons import SourceError
from vgpu.quota.kueue_config import KEY, kueue_config
from vgpu.quota.volcano_scheduler import volcano_scheduler
from vgpu.schemes.name_evidence import configured_names
from vgpu.web import schema
from vgpucli.bill.prices import BadPrices, parse_prices
from vgpucli.doctor.check_schedulers import check_schedulers
from vgpucli.doctor.facts import ClusterFacts, SchedulerText
from vgpucli.fit.manifest import pods_of_manifest

VALUES = (
    "!!bool x",
    "!!timestamp x",
    "!!int x",
    "!!float x",
    "!!binary é",
    "!!omap x",
    "!secret x",
    "{[a]: b}",
    "2026-13-45",
)
HUGE = "0x" + "f" * 6000
"""An integer that PyYAML reads, and Python does not write in decimal digits."""


@pytest.mark.parametrize("value", VALUES)
def test_whatever_pyyaml_raises_is_one_error_in_one_line(value):
    for decoder in (
        yaml_document,
        yaml_documents,
        lambda text: yaml_document(text, fast=True),
        lambda text: yaml_document(text, UniqueKeyLoader),
    ):
        with pytest.raises(NotYamlError, match=r"^.+$"):
            decoder(f"a: {value}")


@pytest.mark.parametrize("value", [*VALUES, HUGE, f"[{{plugins: [{{name: {HUGE}}}]}}]"])
def test_a_configuration_of_others_that_cannot_be_read_ends_no_reader(value, tmp_path):
    assert kueue_config({KEY: f"resources: {value}"}).problem
    volcano_scheduler(f"tiers: {value}", "here")
    assert configured_names(f"nvidia: {value}") == {}
    config = SchedulerText("here", f"profiles: {value}")
    assert [*check_schedulers(ClusterFacts(0.0, configs=(config,)))]
    with pytest.raises(BadPrices):
        parse_prices(f"currency: {value}".encode())
    with pytest.raises(schema.Invalid):
        schema.parse(f"rate_limit: {value}".encode())
    with pytest.raises(ConfigError):
        parse(f"policies: [{{name: {value}}}]", "r.yaml")
    file = tmp_path / "scheduler.yaml"
    file.write_text(f"apiVersion: {value}")
    with pytest.raises(ClickException):
        _findings(file)
    if "x" in value:
        with pytest.raises(SourceError):
            pods_of_manifest(f"spec: {{containers: {value}}}".encode(), "m.yaml", "ml")
        with pytest.raises(SourceError):
            [*items_of(f"kind: Pod\nmetadata: {value}".encode(), "dump")]


def test_a_number_that_is_too_large_is_named():
    output = f"resources: {{transformations: [{{input: a/b, outputs: {{c: {HUGE}}}}}]}}"
    assert "cannot be read" in kueue_config({KEY: output}).problem
    price = f"currency: EUR\nprices: [{{model: a, per_gpu_hour: {HUGE}}}]"
    with pytest.raises(BadPrices, match="per_gpu_hour is a number from 0"):
        parse_prices(price.encode())
