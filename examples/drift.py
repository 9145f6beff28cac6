"""Draw the figure of the README: FedAvg drifts to the wrong point, SCAFFOLD does not.

Two clients in the plane, each with an elongated quadratic loss of its own. Both algorithms start at
the same point, with the same step size and the same number of local steps; thin lines are the
clients' local steps, as `local` of each algorithm makes them, thick ones the server's rounds.

    python examples/drift.py [FOLDER]     (about 5 s; FOLDER is docs unless told)

writes drift.svg and drift.png, the same bytes each time, and prints

    FedAvg    ends 1.6 from x* after 30 rounds
    Scaffold  ends 3.1e-06 from x* after 30 rounds
"""

import sys
from math import cos, radians, sin
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from trimtab import FedAvg, Quadratic, Scaffold, Simulation, simulate
from trimtab.core import ClientOracle

ETA_L, K, R = 0.4, 10, 30
START = torch.tensor([-1.5, -1.0], dtype=torch.float64)
OPTIMA = torch.tensor([[0.0, 2.0], [0.0, -2.0]], dtype=torch.float64)  # x_1*, x_2*
CLIENTS = ("#868e96", "#4a78b0")  # grey, blue
FEDAVG, SCAFFOLD, ORANGE = "#d1495b", "#00798c", "#f28e2b"
QUIET = {"color": "#555555", "fontsize": 11.5}
LEFT, RIGHT, BOTTOM, TOP = -2.35, 3.45, -2.7, 2.65


def two_clients() -> Quadratic:
    """Return two losses that rise steeply across a valley, gently along it; the valleys cross."""
    A = torch.stack([valley(65), valley(110)])
    return Quadratic(A, b=(A @ OPTIMA[:, :, None]).squeeze(2))


def valley(angle: float, steep: float = 1.0, gentle: float = 0.12) -> Tensor:
    """Return a Hessian whose steep direction is turned by `angle` degrees."""
    u = torch.tensor([cos(radians(angle)), sin(radians(angle))], dtype=torch.float64)
    return gentle * torch.eye(2, dtype=torch.float64) + (steep - gentle) * torch.outer(u, u)


def walk(algorithm: Any, problem: Quadratic) -> tuple[Tensor, list[list[Tensor]]]:
    """Return the server's points x_0 ... x_R, and for each round the clients' y_0 ... y_K."""
    sim = simulate(algorithm, problem, x=START)
    servers, rounds = [START], []
    for _ in range(R):
        rounds.append([local_steps(algorithm, sim, i) for i in range(problem.N)])
        servers.append(next(sim).x)
    return torch.stack(servers), rounds


def local_steps(algorithm: Any, sim: Simulation, i: int) -> Tensor:
    """Return the points that client i goes through in the round to come."""
    oracle, visited = sim.problem.oracle(i, sim.seed, sim.r + 1), []

    def g(y: Tensor, k: int | None = None) -> Tensor:
        visited.append(y)
        return oracle(y, k)

    x = sim.server.x
    state = sim.states[i] if i in sim.states else algorithm.init_client(x)
    upload, _ = algorithm.local(ClientOracle(g), state, *sim.server)
    return torch.stack([*visited, x + upload.dx])


# -- drawing


def draw_losses(ax: Axes, problem: Quadratic) -> None:
    """Draw the clients' contours, their optima, and x*."""
    columns = torch.linspace(LEFT, RIGHT, 120, dtype=torch.float64)
    rows = torch.linspace(BOTTOM, TOP, 110, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)
    for i, colour in enumerate(CLIENTS):
        e = grid - OPTIMA[i]
        rise = (e @ problem.A[i] * e).sum(-1) / 2  # f_i(x) - f_i(x_i*)
        levels = [(0.32 * j) ** 2 / 2 for j in range(1, 11)]  # ellipses at even distances
        ax.contour(columns, rows, rise, levels, colors=colour, linewidths=0.7, alpha=0.25)
        for level in levels[:4]:
            ax.contourf(columns, rows, rise, [0, level], colors=colour, alpha=0.045)
        ax.plot(*OPTIMA[i], "s", color=ORANGE, markersize=9, zorder=5)
        write(ax, OPTIMA[i], rf"$x_{i + 1}^{{\!\ast}}$", (0, (17, -18)[i]), "#b8620e", fontsize=16)
    ax.plot(*problem.x_star, "s", color="black", markersize=9.5, zorder=10)


def draw_walk(ax: Axes, servers: Tensor, rounds: list[list[Tensor]], colour: str) -> None:
    """Draw local steps thin, the server's rounds thick."""
    for r, clients in enumerate(rounds[:12]):  # those that follow lie on top of each other
        strength = 0.9 if r < 5 else 0.3
        for path, client in zip(clients, CLIENTS, strict=True):
            ax.plot(*path.T, "-", color=client, linewidth=0.9, alpha=strength, zorder=3)
            ax.plot(*path[1:].T, "o", color=client, markersize=2.4, mew=0, alpha=strength, zorder=3)
    ax.plot(*servers.T, "-", color=colour, linewidth=2.6, zorder=7)
    ax.plot(*servers.T, "o", color=colour, markersize=6, mec="white", mew=0.8, zorder=8)


def write(
    ax: Axes, at: Tensor, text: str, offset: tuple[float, float], colour: str, **how: Any
) -> None:
    """Write a text beside a point, with a white rim so that no line crosses it."""
    ax.annotate(
        text,
        at.tolist(),
        offset,
        textcoords="offset points",
        color=colour,
        path_effects=[withStroke(linewidth=3.5, foreground="white")],
        zorder=9,
        **{"ha": "center", "va": "center", "fontsize": 12, **how},
    )


def draw_fedavg(ax: Axes, problem: Quadratic, servers: Tensor, rounds: list[Any]) -> None:
    """Show where FedAvg stops, and how far that is from x*."""
    draw_walk(ax, servers, rounds, FEDAVG)
    ax.set_title("FedAvg", loc="left", color=FEDAVG, fontsize=17, fontweight="bold", pad=9)
    end, x_star = servers[-1], problem.x_star
    gap = problem.evaluate(end)["distance"]
    ax.plot(*torch.stack([end, x_star]).T, ":", color=FEDAVG, linewidth=1.8, zorder=4)
    ax.plot(*end, "o", color=FEDAVG, markersize=11, mec="white", mew=1.2, zorder=9)
    write(ax, (end + x_star) / 2, f"{gap:.2f}", (3, 11), FEDAVG, fontsize=14, fontweight="bold")
    write(ax, end, "stops at the\nwrong point", (13, -27), FEDAVG, ha="left")
    write(ax, rounds[0][0][2], "client 1", (-33, 2), CLIENTS[0])
    write(ax, rounds[0][1][2], "client 2", (-33, 0), CLIENTS[1])
    write(ax, servers[:2].mean(0), "server", (22, -10), FEDAVG)


def draw_scaffold(ax: Axes, problem: Quadratic, servers: Tensor, rounds: list[Any]) -> None:
    """Show that SCAFFOLD ends at x*."""
    draw_walk(ax, servers, rounds, SCAFFOLD)
    ax.set_title("SCAFFOLD", loc="left", color=SCAFFOLD, fontsize=17, fontweight="bold", pad=9)
    gap = problem.evaluate(servers[-1])["distance"]
    digit, power = f"{gap:.0e}".split("e")
    away = rf"${digit} \cdot 10^{{{int(power)}}}$"
    write(ax, servers[-1], f"ends at\nthe optimum\n({away} away)", (-6, -38), SCAFFOLD)


def draw(problem: Quadratic, walks: list[Any]) -> Figure:
    """Return the figure of both."""
    figure = Figure(figsize=(11.6, 5.75), facecolor="white")
    panels = figure.subplots(1, 2)
    for ax in panels:
        draw_losses(ax, problem)
        write(ax, problem.x_star, r"$x^{\!\!\ast}$", (17, 3), "black", fontsize=17)
        write(ax, START, "start", (-21, 0), "#333333")
        ax.set(xlim=(LEFT, RIGHT), ylim=(BOTTOM, TOP), aspect="equal", xticks=[], yticks=[])
        ax.spines[:].set_color("#dddddd")
    draw_fedavg(panels[0], problem, *walks[0])
    draw_scaffold(panels[1], problem, *walks[1])
    panels[0].set_title("each client walks towards its own optimum", loc="right", **QUIET)
    panels[1].set_title("each step is corrected by $c - c_i$", loc="right", **QUIET)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.915, bottom=0.075, wspace=0.03)
    caption = f"Two clients, {R} rounds of {K} local steps of size {ETA_L:g}, the same start."
    figure.text(
        0.5, 0.025, f"{caption} Thin: the clients. Thick: the server.", ha="center", **QUIET
    )
    return figure


def main(folder: Path) -> None:
    """Walk, print where each ends, and draw."""
    problem = two_clients()
    algorithms = (FedAvg(eta_l=ETA_L, K=K), Scaffold(eta_l=ETA_L, K=K))
    walks = [walk(algorithm, problem) for algorithm in algorithms]
    for algorithm, (servers, _) in zip(algorithms, walks, strict=True):
        gap = problem.evaluate(servers[-1])["distance"]
        print(f"{type(algorithm).__name__:9} ends {gap:.2g} from x* after {R} rounds")
    style = {"svg.hashsalt": "trimtab", "mathtext.fontset": "cm", "font.family": "DejaVu Sans"}
    with mpl.rc_context({**mpl.rcParamsDefault, **style}):
        figure = draw(problem, walks)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "drift.svg", metadata={"Date": None})
        figure.savefig(folder / "drift.png", dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs")
