"""`vgpu quota manifests`: manifests that kubectl takes, from a dump and from an API server."""

import pytest
import yaml

from tests.commands.test_inspect_groups import ITEMS, run
from vgpucli.quota.command import comment_lines

__all__ = ["ITEMS"]


def documents(result):
    assert result.exit_code == 0, result.output
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def test_the_declared_quotas_and_the_policy_are_printed(source):
    found = documents(run("quota", "manifests", *source))
    quotas = {each["metadata"]["namespace"]: each for each in found if "hard" in each["spec"]}
    assert set(quotas) == {"ml", "idle"}, "the quotas of dev are Kubernetes' own already"
    assert quotas["ml"]["spec"]["hard"] == {
        "requests.aliyun.com/gpu-mem": "2",
        "requests.volcano.sh/vgpu-memory": "2048",
        "requests.volcano.sh/vgpu-number": "10",
    }
    assert [each["kind"] for each in found[-2:]] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


def test_what_is_left_out_stands_above_the_object(source):
    text = run("quota", "manifests", *source, "--no-policy").stdout
    assert "# ml: left out for gpushare: gpus: 10" in text
    assert "# ml: memory: Kubernetes does not add up" in text
    assert "AdmissionPolicy" not in text


def test_one_namespace_alone(source):
    found = documents(run("quota", "manifests", *source, "-n", "idle", "--no-policy"))
    assert [each["metadata"]["namespace"] for each in found] == ["idle"]


def test_a_text_with_line_breaks_stays_a_comment():
    assert [*comment_lines("a\nkind: Secret\r\nb")] == ["# a", "# kind: Secret", "# b"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--from", "-", "--kubeconfig", "x"), "--from asks no cluster"),
        (("--from", "-", "--from", "-"), "can be read once only"),
        (("--from", "/does/not/exist"), "/does/not/exist"),
    ],
)
def test_wrong_flags_have_one_clear_line(words, complaint):
    result = run("quota", "manifests", *words)
    assert result.exit_code
    assert complaint in result.stderr
