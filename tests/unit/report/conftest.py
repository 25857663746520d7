"""Fixtures that tests of the report share."""

import pytest

from tests.support.report_tree import write_tree


@pytest.fixture
def root(tmp_path):
    """A project with the metrics, reports and curves of a small finished run."""
    write_tree(tmp_path)
    return tmp_path
