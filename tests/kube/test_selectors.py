"""Label selectors as kubectl takes them."""

import pytest

from vgpu.kube.label_selector import parse_selector

LABELS = {"app": "web", "example.com/tier": "a", "empty": ""}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app!=web", False),
        ("none!=web", True),
        ("app", True),
        ("!app", False),
        ("!none", True),
        ("empty=", True),
        ("example.com/tier in (a, b)", True),
        ("example.com/tier notin (a,b)", False),
        ("none notin (a)", True),
        ("app=web,example.com/tier in (b,c)", False),
        ("app in (web), !none", True),
    ],
)
def test_a_selector_means_what_it_means_to_kubectl(text, selected):
    assert parse_selector(text)(LABELS) is selected


@pytest.mark.parametrize("text", ["app=", "=web", "app in web", "a b", "app=we b", ",", "app=$"])
def test_what_is_no_selector_is_refused(text):
    if text == "app=":
        assert not parse_selector(text)(LABELS)
        return
    with pytest.raises(ValueError, match="is not a label selector such as app=web"):
        parse_selector(text)
