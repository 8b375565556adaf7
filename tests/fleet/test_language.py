"""The page in English and 中文: which one a browser gets, and that no text is missing."""

import re

import pytest
from jinja2 import nodes

from fleet.language import chosen_language, table, texts_of
from fleet.nodes import SORTS
from fleet.pages import PAGES
from fleet.render import environment
from fleet.waiting import PodTab
from tests.fleet.page_numbers import PageNumbers
from tests.fleet.pages_of_dump import get, site_of
from tests.fleet.test_site import HOSTILE
from tests.support.environment import ROOT
from tests.support.sample_cluster import items
from vgpu.ledger.limit_verdict import LimitState, limit_word
from vgpucli.doctor.model import Severity
from vgpucli.explain.model import ExplainOutcome

TEMPLATES = sorted((ROOT / "fleet" / "templates").glob("*.html"))
CHINESE = {"accept-language": "zh-CN,zh;q=0.9,en;q=0.8"}


@pytest.fixture(scope="module")
def site(written):
    return site_of(written(items()))


def constants(call):
    return {each.value for each in call.find_all(nodes.Const) if isinstance(each.value, str)}


def texts_of_templates():
    """All texts that templates ask for; a text is an argument of ``t`` or the noun of a count."""
    found = set()
    for path in TEMPLATES:
        for call in environment().parse(path.read_text()).find_all(nodes.Call):
            is_count = isinstance(call.node, nodes.Getattr) and call.node.attr == "count"
            if is_count:
                found.add(call.args[1].value)
            elif isinstance(call.node, nodes.Name) and call.node.name == "t":
                found |= constants(call)
    return found - {"_", " ", "driver"}


DYNAMIC = (
    *(page.title for page in PAGES if page.title),
    *(tab.value for tab in PodTab),
    *SORTS,
    *(severity.value for severity in Severity),
    *(outcome.value.replace("_", " ") for outcome in ExplainOutcome),
    *(limit_word(state) for state in LimitState),
    *("Namespace", "Team", "problems", "healthy"),
)
"""The texts that are values of tables."""


def test_each_text_of_the_page_is_chinese_and_none_is_left_over():
    wanted = {*texts_of_templates(), *DYNAMIC}
    own = {"Used", "Idle", "Limit", "Nominal", "Borrowed", "Held", "Waiting"}  # by their field
    assert {text for text in wanted if not table("page").get(text)} == set()
    assert table("page").keys() - wanted - own == set()


def test_a_translation_has_the_places_of_its_text():
    def places(text):
        return len(re.findall(r"\{\d?\}", text))

    assert [
        text for text, chinese in table("page").items() if places(text) != places(chinese)
    ] == []


def test_no_text_of_a_template_stands_outside_of_the_table():
    names = {"vgpu fleet", "· vgpu fleet", "Prometheus", "Prometheus:", "JSON", "GPU  ·", "GPU"}
    for path in TEMPLATES:
        html = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", path.read_text(), flags=re.DOTALL)
        html = re.sub(r"<code>.*?</code>", "", html)
        found = re.findall(r">([^<>]*[A-Za-z]{2}[^<>]*)<", html)
        assert {text.strip() for text in found} <= names, path


@pytest.mark.parametrize(
    ("parameter", "cookies", "accepted", "language"),
    [
        ("", "", "", "en"),
        ("", "", "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("", "", "zh", "zh-CN"),
        ("", "", "en-GB,zh;q=0.9", "en"),
        ("", "", "de,zh-TW;q=0.2,en;q=0.1", "zh-CN"),
        ("", "", "zh;q=0,en", "en"),
        ("", "", "zh;q=x, ;;q=,fr", "en"),
        ("", "vgpu-fleet-language=zh-CN", "en", "zh-CN"),
        ("", "a=b; vgpu-fleet-language=en", "zh", "en"),
        ("en", "vgpu-fleet-language=zh-CN", "zh", "en"),
        ("xx", "vgpu-fleet-language=<b>", "", "en"),
    ],
)
def test_the_address_counts_before_the_cookie_and_this_before_the_browser(
    parameter, cookies, accepted, language
):
    assert chosen_language(parameter, cookies, accepted) == language


def test_who_chooses_a_language_keeps_it(site):
    answer = get(site, "/nodes?sort=free&lang=zh-CN")
    cookie = dict(answer.headers)["Set-Cookie"]
    assert cookie.startswith("vgpu-fleet-language=zh-CN; ")
    assert "SameSite=Strict" in cookie
    assert 'href="/nodes?sort=free&amp;lang=en"' in answer.body.decode()
    kept = get(site, "/nodes?sort=free", cookie=cookie.partition(";")[0])
    assert kept.body == answer.body
    for path in ("/nodes?lang=xx", "/nodes"):
        answer = get(site, path)
        assert "Set-Cookie" not in dict(answer.headers)
        assert '<html lang="en">' in answer.body.decode()


def test_chinese_pages_have_the_numbers_of_the_english_ones(site):
    for page in (*PAGES, *("/pods/ml/train-1", "/nodes/a100-1", "/namespaces/ml")):
        path = getattr(page, "path", page)
        if "{" in path or get(site, path).status != 200:
            continue
        english, chinese = (get(site, path, **headers).body.decode() for headers in ({}, CHINESE))
        of_chinese, of_english = (PageNumbers(each).numbers for each in (chinese, english))
        assert sorted(of_chinese) == sorted(of_english)
        assert '<html lang="zh-CN">' in chinese
        assert get(site, f"{'/index' if path == '/' else path}.json", **CHINESE).status == 200


def test_the_code_of_a_reason_stands_beside_its_chinese_text(site):
    html = get(site, "/problems", **CHINESE).body.decode()
    reasons = table("reasons")
    assert any(text and text in html for text in reasons.values())
    codes = re.findall(r"<code>([a-z_]+)</code>", get(site, "/problems").body.decode())
    assert codes
    assert re.findall(r"<code>([a-z_]+)</code>", html) == codes


def test_what_is_not_translated_is_marked_as_english_and_is_text():
    texts = texts_of("zh-CN")
    assert texts.english("the pod waits") == '<span lang="en">the pod waits</span>'
    assert texts.reason("no such text") == '<span lang="en">no such text</span>'
    assert texts.english("") == ""
    for shown in (texts.english(HOSTILE), texts.reason(HOSTILE), texts_of("en").english(HOSTILE)):
        assert "<img" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
