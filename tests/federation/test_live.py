"""What the operator sees: lines without a terminal, a table with one."""

import io

import pytest
from rich.console import Console

from trimtab.federation.events import RoundCommitted, SiteReport, Traffic, metrics_text
from trimtab.report.federation_board import FederationBoard

ROUND = RoundCommitted(
    r=3,
    cohort=["rome", "oslo"],
    absent={"lima": "no answer within 60 s"},
    bytes_up=5200,
    bytes_down=10_400,
    drift=0.125,
    cosine=None,
    metrics={"loss": 0.5, "accuracy": 0.75, "auc": 0.8},
    seconds=4.25,
    sites={
        "rome": SiteReport({"accuracy": 0.5}, 10, 1.0, 2600),
        "oslo": SiteReport({"accuracy": 1.0}, 10, 2.0, 2600),
    },
    wire=Traffic({"rome": 9000}, {"rome": 12_000}),
)


def shown(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, no_color=True)
    with FederationBoard(console, "scaffold over heart", 50, ["rome", "oslo", "lima"]) as watch:
        watch.line("waiting for lima to connect.")
        watch.round(ROUND)
    return out.getvalue()


def test_without_a_terminal_a_round_is_a_line():
    assert shown(terminal=False).splitlines() == [
        "waiting for lima to connect.",
        "round 3: 2 of 3 sites, 5.2 kB up, 10.4 kB down, drift 0.125, "
        "accuracy 0.75, loss 0.5, auc 0.8, 4.2 s",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("scaffold over heart", "3 / 50", "2 of 3", "5.2 kB", "0.125", "no answer within 60 s"),
        *("waiting for lima to connect.", "9 kB", "12 kB", "accuracy 0.5", "its own seconds"),
    ],
)
def test_on_a_terminal_there_is_a_table_of_rounds_and_sites(text):
    assert text in shown(terminal=True)


def test_a_round_without_metrics_says_so():
    assert metrics_text({}) == "no metric"
    assert metrics_text({"loss": None}) == "loss -"
