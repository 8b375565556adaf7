"""The Chinese pages: each shows whether it may be older, and no text of a reason is missing."""

import re
from types import SimpleNamespace

import pytest

from docs import site_hooks, translations
from docs.translations import TRANSLATED
from tests.support.doc_pages import BLOCK, HEADING, links
from tests.support.environment import ROOT

OLDER = "可能比英文页旧"
each_page = pytest.mark.parametrize("name", TRANSLATED)


@pytest.fixture
def root(tmp_path):
    """A repository with the pages alone, in which each translation is current."""
    for name in {*TRANSLATED, *TRANSLATED.values(), translations.TEXTS}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in TRANSLATED:
        translations.mark_current(name, tmp_path)
    return tmp_path


def change(path):
    path.write_text(path.read_text() + "\nMore.\n")


@each_page
def test_a_translation_is_older_when_the_content_of_its_page_has_changed(root, name):
    line = f"{name} may be older than {TRANSLATED[name]}, and shows that"
    assert list(translations.older_pages(root)) == []
    assert line not in translations.report(root)
    change(root / TRANSLATED[name])
    assert list(translations.older_pages(root)) == [name]
    assert line in translations.report(root)


@each_page
def test_an_older_translation_shows_it_until_it_is_marked_as_current(root, name):
    change(root / TRANSLATED[name])
    translations.write_status(root)
    older = [page for page in TRANSLATED if OLDER in (root / page).read_text()]
    assert older == [name]
    translations.mark_current(name, root)
    assert OLDER not in (root / name).read_text()
    assert list(translations.older_pages(root)) == []


@each_page
def test_the_site_shows_it_also_where_the_file_does_not(name):
    text = (ROOT / name).read_text().replace("at ", "at 000000000000. -->\n<!-- was ", 1)
    uri = site_hooks.OUTSIDE.get(name, name.removeprefix("docs/"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
    assert OLDER in site_hooks.on_page_markdown(text, page=page)


@each_page
def test_the_projects_address_makes_no_translation_older(root, name):
    source = root / TRANSLATED[name]
    source.write_text(source.read_text().replace("<!-- END: address", "x\n<!-- END: address"))
    assert list(translations.older_pages(root)) == []


@each_page
def test_a_page_and_its_translation_lead_to_each_other(name):
    for here, there in ((name, TRANSLATED[name]), (TRANSLATED[name], name)):
        folder = (ROOT / here).parent
        assert (ROOT / there).resolve() in {
            (folder / target.partition("#")[0]).resolve()
            for target in links((ROOT / here).read_text())
        }


def without_comments(block):
    return re.sub(r" +#.*", "", block)


@each_page
def test_a_current_translation_has_the_commands_and_files_of_its_page(name):
    text, english = ((ROOT / page).read_text() for page in (name, TRANSLATED[name]))
    if name in translations.older_pages():
        return
    assert [*map(without_comments, BLOCK.findall(text))] == [
        *map(without_comments, BLOCK.findall(english))
    ]
    assert len(HEADING.findall(text)) == len(HEADING.findall(english))


@pytest.mark.slow
def test_every_text_of_a_reason_has_a_chinese_one():
    """`make check` leaves this out: who adds a reason need not write Chinese."""
    assert translations.untranslated(translations.texts()) == []


def test_a_new_text_gets_a_row_and_is_shown_in_english():
    table = translations.texts_file(["new", "", "known"], {"known": "已知", "gone": "无"})
    rows = [line for line in table.splitlines() if " = " in line]
    assert rows == ['"new" = ""', '"known" = "已知"']
    tables = [("T", ("代码", "含义"), [("a", "new"), ("b", "known")])]
    page = translations.reasons_page(tables, {"new": "", "known": "已知"})
    assert "| `a` | new（英文） |" in page
    assert "| `b` | 已知 |" in page
