"""Streams of random numbers: repeatable, and never one stream under two names."""

import itertools

import pytest

from tinybert.pipeline.seeds import stream

PLACES = [(42, "order"), (42, "order", 0), (42, "order", 0, 0), (42, "masks", 0), (42, "masks", 0, 0), (0, "order", 42)]


def first_draw(place) -> float:
    return stream(*place).random()


def test_the_same_place_gives_the_same_numbers():
    assert first_draw((42, "order", 3)) == first_draw((42, "order", 3))


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PLACES, 2)))
def test_different_places_give_different_numbers(one, other):
    assert first_draw(one) != first_draw(other)
