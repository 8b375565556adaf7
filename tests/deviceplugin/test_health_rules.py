"""Which XIDs count: the flag, and the two variables of the original plugins."""

import pytest

from deviceplugin.health.rules import (
    APPLICATION_XIDS,
    DISABLE,
    ENABLE,
    HealthRules,
    parse_xids,
    rules,
)


def made(disable="", enable="", ignored=frozenset({13, 31})):
    return rules(ignored, {DISABLE: disable, ENABLE: enable}, 60)


def test_by_default_what_programs_cause_does_not_count():
    assert {xid for xid in range(1, 200) if not HealthRules().counts(xid)} == APPLICATION_XIDS
    assert rules(APPLICATION_XIDS, {}, 300) == HealthRules()


def test_the_variable_ignores_more_than_the_flag():
    assert [xid for xid in (13, 31, 48, 63, 79) if made("48, 63").counts(xid)] == [79]


@pytest.mark.parametrize("word", ["xids", "all", "ALL", " Xids ", "13,xids"])
def test_a_word_ignores_every_xid(word):
    assert not any(made(word).counts(xid) for xid in range(1, 1000))


def test_only_all_ignores_memory_errors_too():
    assert made("xids").memory_errors
    assert not made("all").memory_errors
    assert made("all", "all").memory_errors


def test_what_is_enabled_overrides_flag_and_variable():
    assert [xid for xid in (13, 31, 48, 79) if made("48", "13,48").counts(xid)] == [13, 48, 79]


def test_of_all_disabled_some_may_be_enabled():
    assert [xid for xid in (13, 48, 79) if made("all", "79").counts(xid)] == [79]


@pytest.mark.parametrize("word", ["all", "xids"])
def test_all_may_be_enabled(word):
    assert all(made("all", word).counts(xid) for xid in range(1, 1000))


def test_the_recovery_is_that_of_the_flag():
    assert made().recovery == 60


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "13 31", "13,,31", "13,", "x", "123456", "٣"])
def test_what_is_no_xid_is_named_with_its_variable(text):
    for name in (DISABLE, ENABLE):
        with pytest.raises(ValueError, match=f"^{name}: .*is not an XID: expected .*all or xids"):
            rules(frozenset(), {name: text}, 60)


def test_the_flag_knows_numbers_only():
    assert parse_xids("13, 31") == {13, 31}
    assert parse_xids("") == frozenset()
    with pytest.raises(ValueError, match="'all' in 'all' is not an XID: expected a number"):
        parse_xids("all")
