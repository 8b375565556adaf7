"""`vgpu bill rules`: prices as recording rules that Prometheus loads."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from click.testing import CliRunner

from tests.grafana.promtool import promtool
from vgpucli.bill.command import command
from vgpucli.bill.days import bounds

PRICES = """
currency: EUR
prices:
  - {model: A100, per_gpu_hour: "2.10"}
  - {model: A100, from: 2027-01-01, per_gpu_hour: "1.95"}
  - {model: A100, mig_profile: 1g.10gb, from: 2026-11-01, per_gpu_hour: 1}
  - {model: 'H100 "PCIe"', per_gpu_hour: "0.0000001"}
"""


def run(folder: Path, text: str, *flags: str, status: int = 0) -> str:
    prices = folder / "prices.yaml"
    prices.write_text(text)
    prices.chmod(0o600)
    result = CliRunner().invoke(command, ["rules", f"--prices={prices}", *flags])
    assert result.exit_code == status, result.output
    return result.output


def test_each_price_is_a_rule_from_its_first_day_to_that_of_the_next(tmp_path: Path) -> None:
    text = run(tmp_path, PRICES, "--timezone", "Europe/Berlin")
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    berlin = ZoneInfo("Europe/Berlin")
    year, month = bounds("2027-01-01", berlin)[0], bounds("2026-11-01", berlin)[0]
    assert [(rule["expr"], rule["labels"]) for rule in rules] == [
        (f"vector(2.10) and vector(time()) < {year}", {"model": "A100", "currency": "EUR"}),
        (f"vector(1.95) and vector(time()) >= {year}", {"model": "A100", "currency": "EUR"}),
        (
            f"vector(1) and vector(time()) >= {month}",
            {"model": "A100", "mig_profile": "1g.10gb", "currency": "EUR"},
        ),
        ("vector(0.0000001)", {"model": 'H100 "PCIe"', "currency": "EUR"}),
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stderr


def test_prices_by_labels_of_nodes_are_refused(tmp_path: Path) -> None:
    text = "currency: EUR\nprices: [{model: A, node_labels: {pool: spot}, per_gpu_hour: 1}]"
    said = run(tmp_path, text, status=1)
    assert said.endswith(
        "prices.yaml: prices[0] has node_labels: the cost series know model and MIG profile only\n"
    )


@pytest.mark.parametrize("text", ["currency: EUR\nprices: []\n"])
def test_a_table_without_prices_is_an_empty_group(tmp_path: Path, text: str) -> None:
    assert yaml.safe_load(run(tmp_path, text))["groups"][0]["rules"] == []
