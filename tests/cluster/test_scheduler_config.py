"""kube-scheduler's own verdict on the files that check-config checks.

It needs no API server: it reads its file, builds its extenders, writes what it has read, and ends.
"""

import subprocess

import pytest
import yaml

from tests.scheduler.scheduler_configs import (
    ACCEPTED,
    REFUSED,
    STANZA,
    UNKNOWN_TO_US,
    WRONG_TYPES,
)
from tests.support.waiting import WAIT_SECONDS

FIELDS = {
    "second_binder": "only one extender can implement bind",
    "no_duration": "in duration",
    "insecure_with_ca": "insecure flag",
}
"""Trap -> what kube-scheduler writes where it names no field."""


@pytest.fixture
def verdict(tools, tmp_path):
    """Why kube-scheduler refuses a configuration, which may be a text; "" if it does not."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "current-context": "none",
        "users": [{"name": "none", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    client = {
        "clientConnection": {"kubeconfig": str(tmp_path / "kubeconfig")},
        "leaderElection": {"leaderElect": False},
    }

    def of(config):
        file = tmp_path / "config.yaml"
        if not isinstance(config, str):
            config = yaml.safe_dump(config)
        file.write_text(config + yaml.safe_dump(client))
        command = [
            *(tools.path("kube-scheduler"), f"--config={file}", "--secure-port=0"),
            f"--write-config-to={tmp_path / 'written.yaml'}",
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
        )
        return ended.stderr if ended.returncode else ""

    return of


BOTH = REFUSED | UNKNOWN_TO_US


@pytest.mark.parametrize(("config", "trap", "field"), BOTH.values(), ids=BOTH)
def test_kube_scheduler_refuses_what_the_check_refuses(verdict, config, trap, field):
    assert FIELDS.get(trap, field) in verdict(config)


@pytest.mark.parametrize("config", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_kube_scheduler_decodes_no_other_type(verdict, config):
    assert "cannot unmarshal" in verdict(config)


def test_kube_scheduler_refuses_a_key_twice(verdict):
    twice = STANZA.replace("bindVerb: bind", "bindVerb: bind\n    filterVerb: other")
    assert 'key "filterVerb" already set' in verdict(twice)


@pytest.mark.parametrize("config", ACCEPTED.values(), ids=ACCEPTED)
def test_kube_scheduler_starts_with_all_else(verdict, config):
    assert verdict(config) == ""
