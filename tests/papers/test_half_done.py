"""Reproductions of which some cells are missing: sentences are open, and nothing else happens."""

from pathlib import Path

import pytest

from trimtab_papers.items import REPRODUCTIONS, read

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", REPRODUCTIONS)
@pytest.mark.parametrize("which", [0, 1])
def test_half_of_the_records_are_judged_and_shown(name, which):
    records = dict(list(read(RESULTS / name).items())[which::2])
    reproduction = REPRODUCTIONS[name]
    assert len(reproduction.claims(records)) == len(reproduction.sentences)
    assert reproduction.table(records)


@pytest.mark.parametrize("base", ["momentum", "adam", "none"])
def test_mime_without_one_of_its_bases_leaves_open_what_needs_it(base):
    records = {n: r for n, r in read(RESULTS / "mime").items() if r["setting"]["base"] != base}
    verdicts = {claim.sentence: claim.verdict for claim in REPRODUCTIONS["mime"].claims(records)}
    (gains,) = (verdict for sentence, verdict in verdicts.items() if "gains much" in sentence)
    assert (gains == "open") == (base != "adam")


def test_table_4_is_open_until_both_have_sampled_alike():
    records = read(RESULTS / "table4")
    lacking = {name: r for name, r in records.items() if not name.startswith("fedavg-5-0-S5")}
    assert len(lacking) < len(records)
    assert {claim.verdict for claim in REPRODUCTIONS["table4"].claims(lacking)} == {"open"}


def test_a_sweep_that_did_not_arrive_leaves_its_sentences_open_and_is_not_shown():
    records = read(RESULTS / "nonconvex")
    rows = next(iter(records["weak"]["found"].values()))
    rows[0]["rounds"] = None
    reproduction = REPRODUCTIONS["nonconvex"]
    verdicts = {c.sentence: c.verdict for c in reproduction.claims(records)}
    assert {v for s, v in verdicts.items() if s.startswith("Weakly convex")} == {"open"}
    assert reproduction.table(records)
    assert reproduction.figure(records)


def test_the_figure_of_lsa_is_drawn_of_what_the_second_seed_has_alone():
    some = {n: r for n, r in read(RESULTS / "lsa").items() if n in ("exact", "N64-seed1")}
    assert len(some) == 2
    *_, against_N = REPRODUCTIONS["lsa"].figure(some).axes
    named = [text.get_text() for text in against_N.get_legend().get_texts()]
    assert named == ["FedLSA", "SCAFFLSA", "predicted variance"]


def test_figure_3_is_shown_by_G_and_then_K():
    rows = REPRODUCTIONS["figure3"].table(read(RESULTS / "figure3")).splitlines()[2:]
    shown = [tuple(int(word) for word in row.split(" | ")[:2]) for row in (r[2:] for r in rows)]
    assert shown == [(G, K) for G in (1, 10, 100) for K in (2, 10)]
