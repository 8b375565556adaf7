"""The oldest Kubernetes client that we allow serves us as well as the newest."""

import re

import pytest

from tests.support.environment import ROOT
from tests.support.oldest_client import LOCK

pytestmark = pytest.mark.slow


def test_the_locked_release_is_the_oldest_that_is_allowed_and_is_used(oldest_client):
    (locked,) = re.findall(r"^kubernetes==(\S+)", LOCK.read_text(), re.MULTILINE)
    (allowed,) = re.findall(r'"kubernetes>=(\d+),', (ROOT / "pyproject.toml").read_text())
    version = oldest_client.run("-c", "import kubernetes; print(kubernetes.__version__)")
    assert version.stdout.strip() == locked == f"{allowed}.0.0"


def test_the_client_of_the_api_server_passes_its_tests_beside_it(oldest_client):
    ran = oldest_client.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kube/test_client.py"
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert re.search(r"\d\d passed", ran.stdout), ran.stdout[-400:]
