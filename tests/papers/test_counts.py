"""What a verdict rests on: how many seeds, and whether another sentence states the same fact."""

import re
from copy import deepcopy
from pathlib import Path

import pytest

from trimtab_papers.docs import excerpt, pages
from trimtab_papers.items import REPRODUCTIONS, read
from trimtab_papers.verdicts import Claim, Sentences, Verdict, over_seeds, repeated

ROOT = Path(__file__).parents[2]
EXACT = {"figure3", "theorem2", "concrete", "local-steps"}  # nothing in them is random
RECORDS = {name: read(ROOT / "results" / name) for name in REPRODUCTIONS}
CLAIMS = {name: r.claims(RECORDS[name]) for name, r in REPRODUCTIONS.items()}


def claim_of(name, text, records=None):
    claims = CLAIMS[name] if records is None else REPRODUCTIONS[name].claims(records)
    (found,) = [claim for claim in claims if text in claim.sentence]
    return found


# -- both halves of a sentence


def test_drift_does_not_harm_fedavg_in_the_records_of_mime():
    claim = claim_of("mime", "Client drift harms FedAvg")
    assert claim.verdict == "not held"
    assert "FedAvg 0.684, Mime 0.651; one seed" in claim.numbers


# -- seeds


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_what_is_random_says_by_how_many_seeds(name):
    seeds = [claim.seeds for claim in CLAIMS[name] if claim.is_judged]
    if name in EXACT:
        assert set(seeds) == {None}
    elif name == "bias":  # full batches, then i.i.d. mini-batches
        assert seeds == [None] * 4 + [1, 1]
    else:
        assert None not in seeds


def test_six_sentences_on_mime_and_five_on_table_5_rest_on_one_seed():
    for name, count in (("mime", 6), ("table5", 5)):
        assert [claim.seeds for claim in CLAIMS[name] if claim.is_judged] == [1] * count


def test_two_sizes_of_clients_with_one_seed_are_one_seed():
    both = over_seeds({"full size, seed 0": True, "small clients, seed 0": True}, "7 rounds")
    assert both.seeds == 1
    three = over_seeds(
        dict.fromkeys((0, "small clients, seed 1", "small clients, seed 2"), True), ""
    )
    assert three.seeds == 3


def test_the_totals_count_by_seeds():
    papers = [claim for claims in CLAIMS.values() for claim in claims if not claim.own]
    held = [claim for claim in papers if claim.held]
    counts = [
        sum(claim.seeds is None for claim in held),
        sum((claim.seeds or 0) > 1 for claim in held),
        sum(claim.seeds == 1 for claim in held),
    ]
    pattern = (
        r"In all, (\d+) of (\d+) sentences of the papers hold: (\d+) where nothing is random, "
        r"(\d+) by several seeds, (\d+) by one seed; (\d+) of them repeat another\."
    )
    for text in (excerpt(RECORDS), pages(RECORDS)["index"]):
        (numbers,) = re.findall(pattern, text)
        assert list(map(int, numbers)) == [len(held), len(papers), *counts, repeated(held)]
    assert "2 held, 4 not held, 1 not judged; all by one seed |" in pages(RECORDS)["index"]


def second_seed(name, change):
    """Return the records with those of another seed beside them, which are changed."""
    records = dict(RECORDS[name])
    for key, record in RECORDS[name].items():
        if "seed" in record["settings"]:
            other = deepcopy(record)
            other["settings"]["seed"] = 1
            change(other)
            records[f"{key}-seed1"] = other
    return records


def test_each_seed_of_the_speed_up_is_judged_by_itself():
    def flatten(record):
        for row in record["found"].values():
            row["trace"] = 1.0

    claim = claim_of("speedup", "variance of SCAFFOLD falls", second_seed("speedup", flatten))
    assert (claim.verdict, claim.seeds) == ("mixed", 2)
    assert claim.numbers.endswith("seed 0: yes, seed 1: no")


def test_each_seed_of_the_mini_batches_is_judged_by_itself():
    def move_away(record):
        record["runs"]["scaffold"]["bias"] = 1e3 * record["runs"]["fedavg"]["bias"]

    records = second_seed("bias", move_away)
    claim = claim_of("bias", "SCAFFOLD and Richardson-Romberg end nearer", records)
    assert (claim.verdict, claim.seeds) == ("mixed", 2)
    assert claim_of("bias", "is where the formula puts it", records).verdict == "held"


# -- sentences that state one fact


def test_what_a_sentence_repeats_is_a_sentence_of_its_reproduction():
    for claims in CLAIMS.values():
        texts = {claim.sentence for claim in claims if not claim.repeats}
        for claim in claims:
            if claim.repeats:
                assert claim.repeats in texts
                assert claim.numbers.endswith(f"; the same fact as '{claim.repeats}'")


def test_three_held_sentences_are_one_fact_about_fedprox():
    about = [c for c in CLAIMS["table3"] if c.held and c.sentence.startswith("FedProx")]
    assert len(about) == 3
    assert repeated(about) == 2


def test_a_repetition_with_another_verdict_is_a_fact_of_its_own():
    paper = Sentences()

    @paper.says("All arrive.")
    def all_arrive(records):
        return Verdict(False, "3 do")

    @paper.says("Everyone arrives.", repeats=all_arrive)
    def everyone_arrives(records):
        return Verdict(records["held"], "3 do")

    for held, count in ((False, 1), (True, 0)):
        claims = [s.judged({"held": held}) for s in (all_arrive, everyone_arrives)]
        assert repeated(claims) == count
    assert repeated([Claim("Everyone arrives.", None, repeats="All arrive.")]) == 0
