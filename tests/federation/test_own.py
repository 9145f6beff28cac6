"""An algorithm and a metric of one's own over real processes: where the site's own file says so."""

import pytest

from tests.helpers.whole_federation import PROBLEM, Whole
from trimtab.algorithms import registry

OWN = (
    PROBLEM
    + '''

from dataclasses import dataclass
from typing import NamedTuple

from trimtab import Metric, register
from trimtab.core import Positive, StepSize, Steps, validate


class Server(NamedTuple):
    x: torch.Tensor


class Upload(NamedTuple):
    dx: torch.Tensor


@register
@dataclass(frozen=True, kw_only=True)
class Clipped:
    """FedAvg with clipped gradients."""

    eta_l: StepSize
    K: Steps
    clip: Positive = 1.0

    def __post_init__(self):
        validate(self)

    def init_server(self, x):
        return Server(x)

    def init_client(self, x):
        return ()

    def local(self, g, state, x):
        y = x
        for k in range(g.steps(self.K)):
            y = y - self.eta_l * g(y, k).clamp(-self.clip, self.clip)
        return Upload(y - x), ()

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Server(server.x + dx)


metrics = {"recall": lambda output, y: (output.argmax(1)[y == 1] == 1).double().mean()}
metric = Metric("recall", higher=True, low=0.0, high=1.0)
'''
)
COMMAND = ("--algorithm", "clipped", "--eta-l", "0.5", "--K", "5", "--clip", "0.25")


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
        assert summary["sentence"].startswith("Clipped(eta_l=0.5, K=5, clip=0.25) ran ")
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
        whole.wait_for("site b sits out: policy.toml, line 5: problem = ")
        whole.wait_for("the server's problem file is", "b")
        whole.stop(whole.server)
    finally:
        whole.close()
