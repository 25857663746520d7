"""Shares of training rows."""

import pytest

from tinybert.data.fraction import fraction_of

ROWS = [{"sentence": str(number)} for number in range(100)]


def test_the_whole_is_all_rows_in_their_order():
    assert fraction_of(ROWS, 1.0, seed=3) == ROWS


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 50), (0.7, 70), (0.009, 1), (1e-9, 1), (0.996, 100)])
def test_the_number_of_rows(fraction, count):
    assert len(fraction_of(ROWS, fraction, seed=3)) == count


def test_rows_keep_their_order_and_are_spread_over_all():
    places = [int(row["sentence"]) for row in fraction_of(ROWS, 0.5, seed=3)]
    assert places == sorted(set(places))
    assert 15 < sum(place < 50 for place in places) < 35  # a draw of 50 among 100: 25, standard deviation 2.5


def test_smaller_shares_are_parts_of_larger_ones():
    half, more = (fraction_of(ROWS, fraction, seed=3) for fraction in (0.5, 0.7))
    assert all(row in more for row in half)


def test_the_seed_decides():
    first, again, other = (fraction_of(ROWS, 0.5, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
