"""Checks that walk over many things, and report each defect in a line."""

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec

P = ParamSpec("P")


def no_defects(find: Callable[P, Iterable[str]]) -> Callable[P, None]:
    """Make a test of what finds defects: it fails with all of them.

    @no_defects
    def test_each_page_has_a_title():
        for page in PAGES:
            if not page.title:
                yield page.name
    """

    @functools.wraps(find)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        defects = list(find(*args, **kwargs))
        assert not defects, "\n".join(["defects:", *defects])

    return test
