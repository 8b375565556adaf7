"""docs/language.md, as far as a program can check it."""

import pytest

from tests.docs import language
from tests.support.defects import no_defects


@pytest.fixture(scope="module")
def exceptions():
    return language.exceptions()


def beyond_what_is_left(found, left):
    """A paragraph for each word that a package uses more often than ``left`` has."""
    for name, words in language.counted(found).items():
        for word, count in words.items():
            allowed = left.get(name, {}).get(word, 0)
            if count > allowed:
                uses = [each for each in found if each.word == word]
                places = [str(use) for use in uses if name in language.counted([use])]
                limit = f'{name} uses "{word}" {count} times, {allowed} are left'
                yield "\n".join([f"{limit} (docs/language.md):", *places])


@no_defects
def test_no_text_uses_an_old_word_more_often_than_before():
    exceptions = language.exceptions()
    yield from beyond_what_is_left(language.uses(exceptions["kept"]), exceptions["left"])


@pytest.mark.slow
@no_defects
def test_no_test_uses_an_old_word_more_often_than_before():
    yield from beyond_what_is_left(language.uses_in_tests(), language.exceptions()["left"])


@no_defects
def test_a_public_class_name_is_unique():
    known = language.exceptions()["classes"]
    for name, modules in language.public_classes().items():
        if len(modules) > 1 and name not in known:
            yield f"{name}: {', '.join(modules)}"


@no_defects
def test_every_exception_has_a_reason():
    kept = language.exceptions()
    for row in kept["kept"]:
        if not row["reason"]:
            yield str(row)
    for name, reason in kept["classes"].items():
        if not reason:
            yield name


def test_no_public_name_has_an_old_word(exceptions):
    assert language.old_names(exceptions["names"]) == []


def test_a_pod_of_the_device_plugin_is_no_tenant():
    names = {name for path, name in language.public_names() if path.startswith("deviceplugin/")}
    assert not [name for name in names if "tenant" in name.lower()]


def test_no_name_of_a_test_has_an_old_word():
    assert language.old_test_names() == []


def test_the_tests_hardly_use_the_word_told():
    places = language.told_places()
    assert len(places) <= language.TOLD_LIMIT, "\n".join(places)


def test_a_kept_name_is_there(exceptions):
    assert exceptions["names"].keys() <= {name for _, name in language.public_names()}


@pytest.mark.parametrize("name", ["write_one_card", "CardUse", "subjects", "told", "most_cards"])
def test_old_words_are_found_in_names(name):
    assert language.NAMES.search(name)


@pytest.mark.parametrize(
    "name", ["discard", "scoreboard", "wildcards_of", "Subjective", "bookmark"]
)
def test_words_that_only_look_old_are_no_old_names(name):
    assert not language.NAMES.search(name)


def test_words_are_found_in_prose_and_messages_and_not_in_code():
    page = "A card is told.\n```\ncard\n```\nthe rule `card_drift`, [its page](card.md)\n"
    texts = list(language.page_texts("page.md", page))
    assert [text.text for text in texts if language.WORDS["card"].search(text.text)] == [
        "A card is told."
    ]
    module = language.ast.parse('"""So long it waits."""\nX = f"{card} is told"\nY = "card"\n')
    nodes = language.ast.walk(module)
    kinds = {text.kind: text.text for text in language.module_texts("m.py", nodes)}
    assert kinds == {"docstrings": "So long it waits.", "messages": " is told"}
    assert language.WORDS["so long"].search(kinds["docstrings"])
    assert not language.WORDS["gaia"].search("the flag --scheme gaia=x, gaia.tencent.com")


def test_words_are_found_in_comments_docstrings_and_identifiers_of_a_test():
    source = '''"""A card."""
def test_a_node_is_told(told):
    # It is told, and `card` is code.
    x = """says"""
    assert told == "card"
'''
    texts = [(text.kind, text.text) for text in language.texts_of_test("t.py", source)]
    assert ("docstrings", "A card.") in texts
    assert ("comments", "# It is told, and  is code.") in texts
    assert not any("says" in text for _, text in texts)
    assert texts.count(("identifiers", "told")) == 2


@pytest.mark.parametrize("name", ["test_a_pod_is_told", "test_a_lock_is_left_alone"])
def test_old_words_are_found_in_names_of_tests(name):
    assert language.is_old_test_name(name)


@pytest.mark.parametrize("name", ["test_a_pod_is_reported", "test_a_pod_untold"])
def test_words_that_only_look_old_are_no_old_names_of_tests(name):
    assert not language.is_old_test_name(name)
