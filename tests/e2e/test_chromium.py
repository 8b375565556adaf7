"""The pages in a real browser: Debian's Chromium on the two pages of the real demo."""

import re

import pytest

from exporter.problems import COLLECTORS, Problem, ProblemSeverity, conflict_text
from exporter.statuspage import PAGE, problem_list
from simulator.demo import demo
from tests.e2e.chromium import Chromium, pixels
from tests.e2e.running_demo import RunningDemo
from tests.support.long_conflicts import long_conflicts

pytestmark = pytest.mark.slow

DESK = {"width": 1100, "height": 800}
PHONE = {"width": 390, "height": 844, "mobile": True}
SCHEMES = ("light", "dark")

# Every text with its contrast to what is painted behind it, as WCAG 2.2 defines it (1.4.3).
CONTRASTS = """
(() => {
  const numbers = (css) => css.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    const colour = numbers(getComputedStyle(element).backgroundColor);
    return colour[3] === 0 && element.parentElement ? behind(element.parentElement) : colour;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const [light, dark] = [numbers(getComputedStyle(element).color), behind(element)]
      .map(luminance).sort((a, b) => b - a);
    found.push([text, (light + 0.05) / (dark + 0.05)]);
  }
  return found;
})()
"""
BEYOND = """
[...document.querySelectorAll("body *")]
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5)
  .map((element) => element.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with RunningDemo(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest.fixture(scope="module")
def url(running):
    return running.url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


def brightness(colour):
    return sum(colour) / 3


def test_the_page_names_every_gpu_container_and_problem(browser, url):
    tab = browser.open(url, **DESK)
    text = tab.value("document.body.innerText")
    for gpu in demo().gpus:
        assert gpu.name in text
        assert gpu.uuid in text
    for pod, container in demo().containers():
        if pod.running:
            assert f"{pod.ref.namespace}/{pod.ref.name}/{container.name}" in text
    assert "Problems (" in text
    for problem in (  # the demo has repaired what was wrong in the cluster; these are of the node
        "over its limit",
        "Orphaned region",
        "dead processes still claim",
        "its region is still there",
    ):
        assert problem in text


def test_nothing_is_fetched_but_the_page_and_nothing_is_complained_about(browser, url):
    tab = browser.open(url, **DESK)
    requests = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
    assert requests
    assert all(request.startswith(f"{url}/") for request in requests)
    assert tab.events("Log.entryAdded") == []
    assert tab.events("Runtime.exceptionThrown") == []
    assert tab.value("document.scripts.length") == 0


def test_the_page_is_painted_and_each_containers_piece_has_its_colour(browser, url):
    tab = browser.open(url, **DESK)
    held = tab.value(
        "(() => { const {x, y, width, height} = document.querySelector('.bar')"
        ".getBoundingClientRect(); return {x, y, width, height}; })()"
    )
    middle = pixels(tab.screenshot(**held | {"y": held["y"] + held["height"] / 2, "height": 1}))[0]
    wide = [colour for colour in set(middle) if middle.count(colour) > 20]
    on_first = [
        container
        for pod, container in demo().containers()
        if pod.running and demo().gpus[0].uuid in {share.device for share in container.shares}
    ]
    assert len(wide) == len(on_first) + 1  # and what is free


@pytest.mark.parametrize("scheme", SCHEMES)
def test_light_and_dark_follow_the_reader(browser, url, scheme):
    tab = browser.open(url, **DESK, scheme=scheme)
    corner = brightness(pixels(tab.screenshot(x=0, y=0, width=4, height=4))[2][2])
    assert (corner > 200) if scheme == "light" else (corner < 50)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_can_be_read(browser, url, scheme):
    contrasts = browser.open(url, **DESK, scheme=scheme).value(CONTRASTS)
    assert len(contrasts) > 100
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_never_scrolls_sideways(browser, url, width):
    tab = browser.open(url, **PHONE | {"width": width})
    assert tab.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert tab.value(BEYOND) == []
    smallest = "Math.min(...[...document.querySelectorAll('td, li, h2')].map((element) =>"
    assert tab.value(f"{smallest} parseFloat(getComputedStyle(element).fontSize)))") >= 12


def test_a_problem_of_any_length_fits_a_phones_screen(browser, tmp_path):
    texts = [conflict_text(conflict, {}, {}) for conflict in long_conflicts()]
    parts = dict.fromkeys(PAGE.get_identifiers(), "")
    parts["problems"] = problem_list(
        [Problem(ProblemSeverity.ERROR, text, COLLECTORS) for text in texts]
    )
    page = tmp_path / "long.html"
    page.write_text(PAGE.substitute(parts))
    tab = browser.open(page.as_uri(), **PHONE)
    assert tab.value("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    heights = tab.value(
        "[...document.querySelectorAll('li')].map((item) => item.getBoundingClientRect().height)"
    )
    assert len(heights) == len(texts)
    assert max(heights) < PHONE["height"]


def test_the_page_refreshes_itself(browser, url):
    tab = browser.open(url, **DESK, still=False)
    before = tab.value("performance.timeOrigin")
    tab.wait_for("Page.loadEventFired")
    assert tab.value("performance.timeOrigin") > before


# ---------------------------------------------------------------- the fleet page

LINKS = "[...document.querySelectorAll('a[href^=\"/\"]')].map((each) => each.getAttribute('href'))"


@pytest.fixture(scope="module")
def fleet(running, browser):
    """The address of the fleet page; the browser has the cookie for its key."""
    tab = browser.open(running.fleet, **DESK)
    address, _, query = tab.value("location.href").partition("?")
    assert query == ""  # the key is not in the history
    return address


@pytest.fixture(scope="module")
def kinds(fleet, browser):
    """A page of each kind: the navigation, and the first one of each form."""
    links = browser.open(fleet, **DESK).value(LINKS)
    by_form = {each.split("?")[0].split("/")[1]: each for each in reversed(links)}
    assert {"nodes", "gpus", "pods", "namespaces"} <= by_form.keys()
    chosen = [*by_form.values(), "/", "/nodes", "/pods?tab=abnormal", "/teams", "/systems"]
    return [f"{fleet.rstrip('/')}{path}" for path in dict.fromkeys(chosen) if ".json" not in path]


def test_the_fleet_page_shows_what_needs_action_and_who_waits(browser, fleet):
    text = browser.open(fleet, **DESK).value("document.body.innerText")
    assert re.search(r"\d+ things need you\. \d+ pods? waits?", text)
    for shown in ("Needs action", "training/train-2", "gpu-node-4", "vgpu explain pod"):
        assert shown in text


def test_without_the_key_the_fleet_page_shows_nothing(fleet, tmp_path):
    with Chromium(tmp_path) as other:
        text = other.open(fleet, **DESK).value("document.body.innerText")
    assert "its key works once" in text
    assert "gpu-node" not in text


def test_fleet_pages_load_their_own_files_alone_and_without_a_complaint(browser, kinds, fleet):
    for address in kinds:
        tab = browser.open(address, **DESK)
        requests = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
        assert all(request.startswith(fleet) for request in requests)
        assert tab.events("Log.entryAdded") == []
        assert tab.events("Runtime.exceptionThrown") == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_of_the_fleet_pages_can_be_read(browser, kinds, scheme):
    for address in kinds:
        contrasts = browser.open(address, **DESK, scheme=scheme).value(CONTRASTS)
        assert len(contrasts) > 10
        assert [(address, text, ratio) for text, ratio in contrasts if ratio < 4.5] == []


def test_fleet_pages_fit_a_phone(browser, kinds):
    for address in kinds:
        tab = browser.open(address, **PHONE)
        assert tab.value("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        assert [(address, each) for each in tab.value(BEYOND)] == []


def test_fleet_pages_in_chinese_fit_a_phone_and_can_be_read(browser, kinds):
    chinese = [f"{each}{'&' if '?' in each else '?'}lang=zh-CN" for each in kinds]
    for address in chinese:
        tab = browser.open(address, **PHONE)
        assert tab.value("document.documentElement.lang") == "zh-CN"
        assert tab.value("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        assert [(address, each) for each in tab.value(BEYOND)] == []
    assert "需要处理" in browser.open(chinese[0], **DESK).value("document.body.innerText")
    browser.open(chinese[0].replace("zh-CN", "en"), **DESK)  # the cookie
