"""Federations in this process, for the tests of the protocol."""

import pytest

from tests.helpers.federation_in_process import Federation, quadratic
from trimtab import Scaffold


@pytest.fixture
def make(tmp_path):
    """Make a federation of three quadratics; end it after the test."""
    made = []

    def make(algorithm=Scaffold(eta_l=0.1, K=3), problem=None, **options):  # noqa: B008
        problem = quadratic() if problem is None else problem
        made.append(Federation(tmp_path / str(len(made)), algorithm, problem, **options))
        return made[-1]

    yield make
    for federation in made:
        federation.close()
