"""Client drift in the plane: Figures 1 and 2 of the SCAFFOLD paper, drawn from a real run.

Two clients, each with an elongated quadratic loss of its own. FedAvg and SCAFFOLD start at the same
point, with the same step size and the same number of local steps. Thin lines are the clients' local
steps, as `local` of each algorithm makes them, thick ones the server's rounds.
"""

from dataclasses import dataclass
from html import escape
from math import cos, degrees, radians, sin
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.fedavg import FedAvg
from trimtab.algorithms.registry import kind
from trimtab.algorithms.scaffold import Scaffold
from trimtab.core import ClientOracle
from trimtab.errors import BadArgument
from trimtab.problems.quadratic import Quadratic
from trimtab.report.charts.lines import path
from trimtab.report.charts.scales import Scale
from trimtab.simulation import Simulation, simulate

ETA_L, K, R = 0.4, 10, 30
CLIENTS = ("#868e96", "#4a78b0")  # grey, blue
OPTIMUM, QUIET = "#b8620e", "#555555"
SHOWN = 12  # <= 12 rounds have their local steps drawn; those that follow lie on top of each other
ELLIPSES, FILLED = 10, 4  # contours of each client, and how many are filled
SPACING = 0.055  # between two contours along curvature 1, as a share of the panel
PANEL, TOP, BOTTOM = 560.0, 40.0, 44.0
WRONG = 0.02  # an end that is > 2 % of the optima's size away is shown as a wrong point
BOX = (-2.35, 3.45, -2.7, 2.65)  # what is shown: left, right, bottom, top; more if G is large

_OPTIMA = torch.tensor([[0.0, 2.0], [0.0, -2.0]], dtype=torch.float64)
_START = torch.tensor([-1.5, -1.0], dtype=torch.float64)


@dataclass(frozen=True)
class Walk:
    """An algorithm's way: the server's points x_0 … x_R, and the clients' y_0 … y_K by round."""

    algorithm: Any
    servers: Tensor
    rounds: list[list[Tensor]]
    distance: float  # from the optimum, at the end


@dataclass(frozen=True)
class Drift:
    """The problem, how far its clients differ, and both ways."""

    problem: Quadratic
    optima: Tensor
    G: float  # the root of the mean |grad f_i(x*)|^2
    walks: tuple[Walk, Walk]

    def svg(self) -> str:
        """Return the picture as an SVG file."""
        return _picture(self)


def drift(
    *,
    eta_l: float = ETA_L,
    K: int = K,
    G: float | None = None,
    R: int = R,
    sigma: float = 0.0,
    seed: int = 0,
) -> Drift:
    """Run FedAvg and SCAFFOLD on two quadratics whose gradients at the optimum differ by G.

    sigma: the noise of the gradients, as of mini-batches, and seed: which noise it is.

    >>> found = drift()
    >>> [f"{walk.distance:.1g}" for walk in found.walks]
    ['2', '3e-06']
    """
    if G is not None and not G > 0:
        raise BadArgument("G", "{G:{_given}}; pass a positive number.", _given=G)
    A = torch.stack([_valley(65), _valley(110)])
    own = _dissimilarity(_quadratic(A, _OPTIMA))
    size = 1.0 if G is None else G / own
    problem = _quadratic(A, size * _OPTIMA, sigma)
    algorithms = (FedAvg(eta_l=eta_l, K=K), Scaffold(eta_l=eta_l, K=K))
    first, second = (_walk(algorithm, problem, R, seed) for algorithm in algorithms)
    return Drift(problem, size * _OPTIMA, size * own, (first, second))


def _quadratic(A: Tensor, optima: Tensor, sigma: float = 0.0) -> Quadratic:
    return Quadratic(A, b=(A @ optima[:, :, None]).squeeze(2), sigma=sigma)


def _valley(angle: float, steep: float = 1.0, gentle: float = 0.12) -> Tensor:
    """Return a Hessian whose steep direction is turned by `angle` degrees."""
    u = torch.tensor([cos(radians(angle)), sin(radians(angle))], dtype=torch.float64)
    return gentle * torch.eye(2, dtype=torch.float64) + (steep - gentle) * torch.outer(u, u)


def _dissimilarity(problem: Quadratic) -> float:
    gradients = [problem.client_gradient(i, problem.x_star) for i in range(problem.N)]
    return float(torch.stack(gradients).square().sum(1).mean().sqrt())


def _walk(algorithm: Any, problem: Quadratic, R: int, seed: int) -> Walk:
    sim = simulate(algorithm, problem, seed=seed, x=_START)
    servers, rounds = [_START], []
    for _ in range(R):
        rounds.append([_local_steps(algorithm, sim, i) for i in range(problem.N)])
        servers.append(next(sim).x)
    distance = float((servers[-1] - problem.x_star).norm())
    return Walk(algorithm, torch.stack(servers), rounds, distance)


def _local_steps(algorithm: Any, sim: Simulation, i: int) -> Tensor:
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


def _picture(found: Drift) -> str:
    left, right, bottom, top = (max(1.0, found.optima[0, 1].item() / 2) * edge for edge in BOX)
    height = PANEL * (top - bottom) / (right - left)
    panels = []
    for j, walk in enumerate(found.walks):
        x = Scale(left, right, 8 + j * (PANEL + 12), 8 + j * (PANEL + 12) + PANEL)
        y = Scale(bottom, top, TOP + height, TOP)
        panels.append(_panel(found, walk, x, y))
    a = found.walks[0].algorithm
    noise = f", sigma = {found.problem.sigma:.2g}" if found.problem.sigma else ""
    caption = (
        f"Two clients, {len(found.walks[0].rounds)} rounds of {a.K} local steps of size "
        f"{a.eta_l:g}, G = {found.G:.2g}{noise}, the same start. Thin: the clients. Thick: the "
        "server."
    )
    width, whole = 2 * PANEL + 28, TOP + height + BOTTOM
    ends = ", ".join(
        f"{kind(walk.algorithm).title} ends {walk.distance:.1e} from the optimum"
        for walk in found.walks
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {whole:.0f}" role="img" '
        f'aria-label="Two clients with different losses: {escape(ends)}." '
        'font-family="system-ui, DejaVu Sans, sans-serif" font-size="17">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(panels)}'
        f"{_text(width / 2, whole - 14, caption, QUIET, size=15)}</svg>\n"
    )


def _panel(found: Drift, walk: Walk, x: Scale, y: Scale) -> str:
    own, first = kind(walk.algorithm), walk is found.walks[0]
    clip = f"panel{int(not first)}"
    said = (
        "each client walks towards its own optimum" if first else "each step is corrected by c − cᵢ"
    )
    frame = f'x="{x.start:g}" y="{y.end:g}" width="{PANEL:g}" height="{y.start - y.end:.1f}"'
    inside = [_contours(found.problem.A[i], found.optima[i], x, y, CLIENTS[i]) for i in (0, 1)]
    for r, clients in reversed(list(enumerate(walk.rounds[:SHOWN]))):
        inside += [_thin(points, x, y, CLIENTS[i], r < 5) for i, points in enumerate(clients)]
    inside.append(_thick(walk.servers, x, y, own.colour))
    end, star = walk.servers[-1], found.problem.x_star
    stops = walk.distance > WRONG * float(found.optima.norm())
    if stops:
        inside.append(_gap(end, star, x, y, own.colour, walk.distance))
    marks = [_square(optimum, x, y, OPTIMUM) for optimum in found.optima]
    marks.append(_square(star, x, y, "#000000"))
    texts = [_beside(found.optima[j], x, y, f"x{'₁₂'[j]}*", OPTIMUM) for j in (0, 1)]
    texts.append(_beside(star, x, y, "x*", "#000000"))
    px, py = _at(walk.servers[0], x, y)
    texts.append(_text(px, py + 24, "start", QUIET))
    for i, points in enumerate(walk.rounds[0]):
        middle = points[len(points) // 3]
        texts.append(_beside(middle, x, y, f"client {i + 1}", CLIENTS[i], left=True))
    verdict = "stops at a wrong point" if stops else "ends at the optimum"
    verdict += f", {walk.distance:.2g} away"
    texts.append(_text(x.end - 12, y.start - 14, verdict, own.colour, "end"))
    return (
        f'<clipPath id="{clip}"><rect {frame}/></clipPath>'
        f'<g clip-path="url(#{clip})" fill="none">{"".join(inside)}</g>'
        f'<rect {frame} fill="none" stroke="#dddddd"/>{"".join(marks)}{"".join(texts)}'
        f"{_text(x.start, TOP - 14, own.title, own.colour, 'start', 22, bold=True)}"
        f"{_text(x.end, TOP - 14, said, QUIET, 'end', 15)}"
    )


def _gap(end: Tensor, star: Tensor, x: Scale, y: Scale, colour: str, distance: float) -> str:
    """Return how far from the optimum the server stops."""
    way = path([_at(end, x, y), _at(star, x, y)])
    px, py = _at((end + star) / 2, x, y)
    dotted = f'<path d="{way}" stroke="{colour}" stroke-width="2" stroke-dasharray="2 4"/>'
    return dotted + _text(px, py - 10, f"{distance:.2f}", colour, bold=True)


def _at(point: Tensor, x: Scale, y: Scale) -> tuple[float, float]:
    return x(float(point[0])), y(float(point[1]))


def _contours(A: Tensor, optimum: Tensor, x: Scale, y: Scale, colour: str) -> str:
    """Return ellipses on which a client's loss is the same, at even distances."""
    values, vectors = torch.linalg.eigh(A)
    angle = -degrees(torch.atan2(vectors[1, 0], vectors[0, 0]).item())
    cx, cy = _at(optimum, x, y)
    unit = SPACING * (x.end - x.start)
    axes = [unit / float(value.sqrt()) for value in values]
    empty = ' fill="none"'
    each = "".join(
        f'<ellipse rx="{j * axes[0]:.1f}" ry="{j * axes[1]:.1f}"{empty * (j > FILLED)}/>'
        for j in range(1, ELLIPSES + 1)
    )
    look = f'stroke="{colour}" stroke-opacity=".3" fill="{colour}" fill-opacity=".045"'
    return f'<g transform="translate({cx:.1f} {cy:.1f}) rotate({angle:.1f})" {look}>{each}</g>'


def _thin(points: Tensor, x: Scale, y: Scale, colour: str, strong: bool) -> str:
    """Return a client's steps: a line, and a dot at each."""
    places = [_at(point, x, y) for point in points]
    dots = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in places[1:])
    faint = "" if strong else ' opacity=".35"'
    return (
        f'<g stroke="{colour}"{faint}><path d="{path(places)}"/>'
        f'<path stroke-width="4" stroke-linecap="round" d="{dots}"/></g>'
    )


def _thick(points: Tensor, x: Scale, y: Scale, colour: str) -> str:
    """Return the server's rounds: a line, and a dot at each that can be told from the last."""
    places = [_at(point, x, y) for point in points]
    apart: list[tuple[float, float]] = []
    for place in places:
        if not apart or max(abs(a - b) for a, b in zip(place, apart[-1], strict=True)) > 1:
            apart.append(place)
    dots = "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5"/>' for px, py in apart)
    return (
        f'<path d="{path(apart)}" stroke="{colour}" stroke-width="3.6"/>'
        f'<g fill="{colour}" stroke="#ffffff" stroke-width="1.2">{dots}</g>'
    )


def _square(point: Tensor, x: Scale, y: Scale, colour: str) -> str:
    px, py = _at(point, x, y)
    return f'<rect x="{px - 6:.1f}" y="{py - 6:.1f}" width="12" height="12" fill="{colour}"/>'


def _beside(point: Tensor, x: Scale, y: Scale, words: str, colour: str, left: bool = False) -> str:
    px, py = _at(point, x, y)
    anchor = "end" if left else "start"
    return _text(
        px + (-12 if left else 12), py + 6, words, colour, anchor, 20 if "*" in words else 17
    )


def _text(
    x: float,
    y: float,
    words: str,
    colour: str,
    anchor: str = "middle",
    size: int = 17,
    bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    rim = 'paint-order="stroke" stroke="#ffffff" stroke-width="4" stroke-linejoin="round"'
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {at} fill="{colour}" {rim}{weight}>{escape(words)}</text>'
