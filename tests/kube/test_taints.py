"""Tolerations as pods have them: what is read of any text, and what it is about."""

import json

import pytest

from vgpu.model.taints import MOST_BYTES, Taint, Toleration, parsed_tolerations, untolerated

GPU = Taint("gpu", "a100", "NoSchedule")
DOWN = Taint("node.kubernetes.io/unreachable", effect="NoExecute")
SOFT = Taint("gpu", "a100", "PreferNoSchedule")


def read(*tolerations):
    return parsed_tolerations(json.dumps(tolerations).encode())


@pytest.mark.parametrize(
    ("tolerations", "taint"),
    [
        ([], GPU),
        ([{"operator": "Exists"}], None),
        ([{"key": "gpu", "value": "a100"}], DOWN),
        ([{"key": "gpu", "operator": "", "value": "a100"}], DOWN),
        ([{"key": "gpu", "value": "a100"}, {"key": DOWN.key, "operator": "Exists"}], None),
        ([{"key": "gpu", "value": "t4"}], GPU),
        ([{"value": "a100"}], GPU),
    ],
)
def test_the_first_taint_that_no_toleration_covers_keeps_the_pod_off(tolerations, taint):
    assert untolerated(read(*tolerations), (SOFT, GPU, DOWN)) == taint


@pytest.mark.parametrize(
    "text",
    [b"null", b"[]", b"{}", b"[1]", b'[{"key": 1}]', b"[", b'"' + b"x" * MOST_BYTES + b'"'],
    ids=lambda text: text[:12].decode(),
)
def test_what_is_no_toleration_tolerates_nothing(text):
    assert parsed_tolerations(text) == ()


def test_fields_of_newer_versions_are_passed_over():
    assert read({"key": "gpu", "tolerationSeconds": 3, "new": {}}) == (Toleration("gpu"),)


def test_a_taint_is_named_as_kubectl_takes_it():
    assert [each.text for each in (GPU, DOWN)] == ["gpu=a100:NoSchedule", f"{DOWN.key}:NoExecute"]
