"""Draw client drift in the plane: Figures 1 and 2 of the SCAFFOLD paper, from a real run.

Two clients, each with an elongated quadratic loss. FedAvg and SCAFFOLD start at the same point,
with the same step size and number of local steps. Thin lines are the clients' local steps, as
`local` of each algorithm makes them, thick lines the server's rounds. Needs matplotlib; takes about
5 s, writes drift.svg (or the path that is passed: the README shows docs/drift.svg) and prints

    FedAvg ends 1.6 from x* after 30 rounds
    Scaffold ends 3.1e-06 from x* after 30 rounds
"""

import re
import sys
from io import StringIO
from math import cos, radians, sin
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Ellipse, PathPatch
from matplotlib.path import Path as Curve
from torch import Tensor

from trimtab import FedAvg, Quadratic, Scaffold, Simulation, simulate
from trimtab.core import Algorithm, ClientOracle

R, SHOWN = 30, 12  # the local steps of later rounds lie on top of each other
START = torch.tensor([-1.5, -1.0], dtype=torch.float64)
OPTIMA = torch.tensor([[0.0, 2.0], [0.0, -2.0]], dtype=torch.float64)
CLIENTS, OPTIMUM, QUIET = ("#868e96", "#4a78b0"), "#b8620e", "#555555"
PANELS = (
    (FedAvg(eta_l=0.4, K=10), "#d1495b", "each client walks towards its own optimum"),
    (Scaffold(eta_l=0.4, K=10), "#00798c", "each step is corrected by c − cᵢ"),
)
# Texts stay texts and names are derived from a fixed salt, so that the file is the same everywhere.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "drift", "font.family": "DejaVu Sans"}


def valley(angle: float) -> Tensor:
    """Return a Hessian with eigenvalue 1 in the direction `angle` (degrees), 0.12 across."""
    u = torch.tensor([cos(radians(angle)), sin(radians(angle))], dtype=torch.float64)
    return 0.12 * torch.eye(2, dtype=torch.float64) + 0.88 * torch.outer(u, u)


def local_steps(algorithm: Algorithm, sim: Simulation, i: int) -> Tensor:
    """Return the points y_0 … y_K of client i in the next round."""
    oracle, visited = sim.problem.oracle(i, sim.seed, sim.r + 1), []

    def g(y: Tensor, k: int | None = None) -> Tensor:
        visited.append(y)
        return oracle(y, k)

    x = sim.server.x
    state = sim.states[i] if i in sim.states else algorithm.init_client(x)
    upload, _ = algorithm.local(ClientOracle(g), state, *sim.server)
    return torch.stack([*visited, x + upload.dx])


def draw(axes: plt.Axes, problem: Quadratic, algorithm: Algorithm, colour: str, says: str) -> float:
    """Run and draw one algorithm; return how far from x* it ends."""
    sim, servers = simulate(algorithm, problem, x=START), [START]
    for i, client in enumerate(CLIENTS):
        values, vectors = torch.linalg.eigh(problem.A[i])
        angle = torch.atan2(vectors[1, 0], vectors[0, 0]).rad2deg().item()
        for j in range(10, 0, -1):
            width, height = (0.64 * j / values.sqrt()).tolist()
            look = {"ec": (client, 0.3), "fc": (client, 0.05 if j <= 4 else 0.0), "lw": 0.7}
            axes.add_patch(Ellipse(OPTIMA[i].tolist(), width, height, angle=angle, **look))
    for r in range(R):
        for i, client in enumerate(CLIENTS if r < SHOWN else ()):
            points = local_steps(algorithm, sim, i)
            look = {"color": client, "alpha": 1.0 if r < 5 else 0.35}
            axes.plot(*points.T, linewidth=0.7, **look)
            # Lines of no length with round ends: one short path instead of a marker per step.
            dots = Curve(points.repeat_interleave(2, 0), [Curve.MOVETO, Curve.LINETO] * len(points))
            axes.add_patch(PathPatch(dots, linewidth=3, capstyle="round", **look))
            if r == 0:
                at = (points[3] - torch.tensor([0.08, 0.0])).tolist()
                axes.text(*at, f"client {i + 1}", color=client, ha="right", va="center")
        servers.append(next(sim).x)
    white = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    axes.plot(*torch.stack(servers[:8]).T, "o-", color=colour, linewidth=2.6, markersize=7, **white)
    end, star = servers[-1], problem.x_star
    distance = float((end - star).norm())
    if distance > 0.05:
        axes.plot(*torch.stack([end, star]).T, ":", color=colour, linewidth=1.5)
        x, y = ((end + star) / 2).tolist()
        axes.text(x, y + 0.1, f"{distance:.2f}", color=colour, ha="center", fontweight="bold")
    for point, name in zip((*OPTIMA, star), ("x₁*", "x₂*", "x*"), strict=True):
        shade = "black" if point is star else OPTIMUM
        axes.plot(*point, "s", color=shade, markersize=8)
        axes.text(point[0] + 0.13, point[1], name, color=shade, fontsize=14, va="center")
    axes.text(START[0], START[1] - 0.28, "start", color=QUIET, ha="center")
    verdict = "stops at a wrong point" if distance > 0.05 else "ends at the optimum"
    axes.text(3.35, -2.6, f"{verdict}, {distance:.2g} away", color=colour, ha="right", fontsize=12)
    name = type(algorithm).__name__.replace("Scaffold", "SCAFFOLD")
    axes.set_title(name, loc="left", color=colour, fontweight="bold", fontsize=15)
    axes.set_title(says, loc="right", color=QUIET, fontsize=11)
    axes.set(xlim=(-2.35, 3.45), ylim=(-2.75, 2.65), xticks=[], yticks=[], aspect="auto")
    plt.setp(axes.spines.values(), color="#dddddd")
    return distance


def main(path: str) -> None:
    A = torch.stack([valley(65), valley(110)])
    problem = Quadratic(A, b=(A @ OPTIMA[:, :, None]).squeeze(2))
    with plt.rc_context(STYLE):
        figure, both = plt.subplots(1, 2, figsize=(11.5, 5.9))
        figure.subplots_adjust(left=0.01, right=0.99, top=0.94, bottom=0.06, wspace=0.02)
        for axes, panel in zip(both, PANELS, strict=True):
            distance = draw(axes, problem, *panel)
            print(f"{type(panel[0]).__name__} ends {distance:.2g} from x* after {R} rounds")
        caption = f"Two clients, {R} rounds of 10 local steps of size 0.4. Thin: the clients. "
        figure.text(0.5, 0.02, f"{caption}Thick: the server.", color=QUIET, ha="center")
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # One decimal is enough to see, and hides the rounding in which machines differ.
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}", file.getvalue())
    Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["drift.svg"])
