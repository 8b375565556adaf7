"""Results are made once while their key stays, and are forgotten with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.sources.files import KeptResults


@given(st.lists(st.lists(st.integers(0, 9)), max_size=8))
def test_a_result_is_made_when_its_key_comes_and_never_while_it_stays(rounds):
    made = []
    results = KeptResults(lambda key: made.append(key) or str(key))
    before = set()
    for keys in rounds:
        made.clear()
        assert results(keys) == {key: str(key) for key in keys}
        assert sorted(made) == sorted(set(keys) - before)
        before = set(keys)


def test_an_error_is_raised_each_time_and_costs_no_other_result():
    made = []

    def inverse(key):
        made.append(key)
        return 1 / key

    results = KeptResults(inverse)
    results([1, 2])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            results([1, 0])
    assert results([1, 2]) == {1: 1.0, 2: 0.5}
    assert made == [1, 2, 0, 0]
