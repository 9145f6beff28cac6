"""An algorithm and a metric of one's own over real processes: where the site's own file says so."""

import pytest

from tests.helpers.clamped import CLAMPED
from tests.helpers.whole_federation import PROBLEM, Whole
from trimtab.algorithms import registry

OWN = (
    PROBLEM
    + CLAMPED.replace("@dataclass", "@register\n@dataclass")
    + """

metrics = {"recall": lambda output, y: (output.argmax(1)[y == 1] == 1).double().mean()}
metric = Metric("recall", higher=True, low=0.0, high=1.0)
"""
)
COMMAND = ("--algorithm", "clamped", "--eta-l", "0.5", "--K", "5", "--clip", "0.25")


@pytest.mark.federation
def test_sites_run_the_algorithm_that_their_own_problem_file_registers(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_own", {})
    whole = Whole(tmp_path, ["a", "b"], problem=OWN)
    try:
        for name in whole.names:
            whole.start_site(name)
        options = ("-R", "30", "--target", "0.8")
        summary = whole.run("server", str(whole.operator), *COMMAND, *options)
        assert summary["reached"], summary
        assert summary["metric"] >= 0.8
        assert summary["metric"] == summary["metrics"]["recall"]
        assert summary["sentence"].startswith("Clamped(eta_l=0.5, K=5, clip=0.25) ran ")
        assert "recall" in summary["sentence"]
    finally:
        whole.close()


@pytest.mark.federation
def test_a_site_that_approved_another_file_sits_out(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_own", {})
    whole = Whole(tmp_path, ["a", "b"], problem=OWN)
    (tmp_path / "sites" / "b" / "problem.py").write_text(OWN.replace("@register\n", ""))
    try:
        for name in whole.names:
            whole.start_site(name)
        whole.start_server("server", str(whole.operator), *COMMAND, "-R", "2", "--min-sites", "1")
        whole.wait_for("site b sits out: approved.sha256: ")
        whole.wait_for("the server's problem file is", "b")
        whole.stop(whole.server)
    finally:
        whole.close()
