"""FinOps' own validator reads what `-o focus` writes.

focus-validator 1.0.0 has the rules of FOCUS 1.0, whose pins do not fit ours: it has an environment
of its own, from requirements/focus-validator.lock. It reports against the file only that columns
are missing which 1.0 requires and 1.2 does not, or only of charges that have a commitment discount,
a SKU or a region; four of them it names otherwise than the specification does.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bill.test_focus import MANDATORY
from tests.support.environment import ROOT, without_pytest_options
from vgpucli.bill.day_file import write_day
from vgpucli.demo.bill_days import PRICES, MadeUp

pytestmark = pytest.mark.thorough("bill")

LOCK = ROOT / "requirements" / "focus-validator.lock"

ONLY_IN_1_0 = {
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "RegionId",
    "RegionName",
    "ResourceName",
    "SkuId",
    "SkuPriceId",
}
MISNAMED = {"InvoiceIssuer", "Provider", "Publisher", "ResourceID"}
"""InvoiceIssuerName, ProviderName, PublisherName and ResourceId in the specification."""


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in its environment."""
    folder = tmp_path_factory.mktemp("focus-validator")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", LOCK], check=True)
    return folder / "bin" / "focus-validator"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two days."""
    folder = tmp_path_factory.mktemp("bill")
    (folder / "days").mkdir()
    for day in ("2026-11-01", "2026-11-02"):
        write_day(folder / "days", MadeUp(24).day(day))
    prices = folder / "prices.yaml"
    prices.write_text(PRICES)
    prices.chmod(0o600)
    words = ["bill", f"--days={folder / 'days'}", f"--prices={prices}", "-o", "focus"]
    command = [sys.executable, "-m", "vgpu", *words, "--from=2026-11-01", "--to=2026-11-03"]
    done = subprocess.run(
        command, cwd=ROOT, env=without_pytest_options(), capture_output=True, check=True
    )
    file = folder / "focus.csv"
    file.write_bytes(done.stdout)
    return file


def test_the_validator_misses_only_columns_that_1_2_does_not_require(
    validator: Path, written: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    (packages,) = validator.parent.parent.glob("lib/python*/site-packages")
    to = ["--output-type", "unittest", "--output-destination", str(report)]
    subprocess.run(
        [validator, "--data-file", str(written), "--validate-version", "1.0", *to],
        cwd=packages,  # it reads its list of currencies from the folder in which it runs
        capture_output=True,
        check=False,
    )
    cases = [*ET.parse(report).getroot().iter("testcase")]
    failed = {
        case.attrib["name"].partition(" :: ")[0]
        for case in cases
        if case.find("failure") is not None
    }
    assert failed == {f"{column}_Required" for column in ONLY_IN_1_0 | MISNAMED}
    assert len(cases) > 100
    assert not ONLY_IN_1_0 & {*MANDATORY}
