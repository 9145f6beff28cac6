"""The lines that the operator reads."""

from trimtab.federation.events import RoundCommitted, SiteReport, Traffic, metrics_text, round_text

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


def test_a_round_is_a_line():
    assert round_text(ROUND) == (
        "round 3: 2 of 3 sites, 5.2 kB up, 10.4 kB down, drift 0.125, "
        "accuracy 0.75, loss 0.5, auc 0.8, 4.2 s"
    )


def test_a_round_without_metrics_says_so():
    assert metrics_text({}) == "no metric"
    assert metrics_text({"loss": None}) == "loss -"
