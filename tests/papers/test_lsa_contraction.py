"""The reproductions lsa and contraction: what they claim, and that they can fail."""

import json
from copy import deepcopy

import pytest

from trimtab_papers.contraction import CONTRACTION
from trimtab_papers.engine import reproduce
from trimtab_papers.lsa import LSA

pytestmark = pytest.mark.reproduce
every = pytest.mark.parametrize("which", [LSA, CONTRACTION], ids=lambda r: r.name)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return the records of a reproduction's quick version, computed when first asked for."""
    root, known = tmp_path_factory.mktemp("results"), {}

    def quick(reproduction):
        if reproduction.name not in known:
            known[reproduction.name] = reproduce(reproduction, root / reproduction.name, quick=True)
        return deepcopy(known[reproduction.name])

    return quick


def verdicts(reproduction, records):
    return {claim.sentence: claim.verdict for claim in reproduction.claims(records)}


@every
def test_what_is_claimed_holds(which, records):
    found = records(which)
    assert set(verdicts(which, found).values()) == {"held"}
    assert all(claim.numbers for claim in which.claims(found))
    assert any(claim.own for claim in which.claims(found))
    assert not all(claim.own for claim in which.claims(found))


@every
def test_without_a_cell_the_claims_are_open(which, records):
    found = records(which)
    for missing in found:
        rest = {name: record for name, record in found.items() if name != missing}
        assert set(verdicts(which, rest).values()) == {"open"}
    assert set(verdicts(which, {}).values()) == {"open"}


@every
def test_one_seed_can_turn_a_verdict_round(which, records):
    found = records(which)
    other = {f"{name}-seed1": deepcopy(record) for name, record in found.items()}
    for record in other.values():
        record["settings"]["seed"] = 1
    both = found | other
    assert set(verdicts(which, both).values()) == {"held"}
    _worsen(which, other)
    assert set(verdicts(which, both).values()) == {"mixed"}
    _worsen(which, found)
    assert set(verdicts(which, both).values()) == {"not held"}


def _worsen(which, records):
    """Make records tell another story."""
    for record in records.values():
        if which is CONTRACTION and "rows" in record:
            for row in record["rows"]:
                row["scaffold"]["gradients"] = 100
        elif which is CONTRACTION:
            for row in record["found"].values():
                row["factor"] = row["last factor"] = 1.01
            record["found"]["scaffold"] |= {"rate": 1.5, "x alone": {"largest": 0.0, "start": 1.0}}
        elif "rows" in record:
            for row in record["rows"]:
                row["fedavg"], row["scaffold"], row["from the closed form"] = 0.1, 0.1, 0.1
        else:
            record["found"]["scaffold"] = dict(record["found"]["fedavg"])
            N = record["settings"]["N"]
            record["found"]["scaffold"] |= {"trace": 1.0 + 0 * N, "error": 9.0}
            record["difference off by"] = 1.0


@every
def test_tables_and_figures_show_what_there_is(which, records, tmp_path):
    found = records(which)
    for some in (found, *({name: record} for name, record in found.items()), {}):
        rows = [line for line in which.table(some).splitlines() if line.startswith("|")]
        assert rows
        which.figure(some).savefig(tmp_path / "figure.png", dpi=40)


@every
def test_records_are_small_and_a_full_run_has_three_seeds(which, records):
    for record in records(which).values():
        assert record["settings"]
        assert len(json.dumps(record)) < 60_000
    once = [cell.name for cell in which.cells(True, 1)]
    assert list(records(which)) == sorted(once)
    assert [cell.name for cell in which.cells(True, 2)] == once + [f"{n}-seed1" for n in once]
    assert sum(cell.name.endswith("-seed2") for cell in which.cells(False, 1)) >= len(once)
