"""Options that several commands take, and what they stand for."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from trimtab.algorithms import ALGORITHMS, BASES, FedAvg, RichardsonRomberg
from trimtab.core import Algorithm

HYPER = {"eta_l": float, "eta": float, "K": int, "eta_g": float, "mu": float, "option": str}
HYPER |= {"beta": float, "beta1": float, "beta2": float, "eps": float}


class CountOrFraction(click.ParamType[int | float]):
    """A whole number, or a fraction such as 0.2."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | float:
        """Read '20' as a number and '0.2' as a fraction."""
        try:
            return int(value) if str(value).lstrip("-").isdigit() else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor a fraction.", param, ctx)


class Numbers(click.ParamType[list[int]]):
    """Whole numbers with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """Read '1,5,20'."""
        try:
            return [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 1,5,20.", param, ctx)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all runs take."""
    for option in reversed(
        (
            click.option("--S", "S", type=CountOrFraction(), help="Clients a round: 20, or 0.2."),
            click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all."),
            click.option("-R", "R", type=int, default=200, show_default=True, help="Most rounds."),
            click.option("--target", type=float, help="Accuracy to reach (regression: loss)."),
            click.option("--seed", type=int, default=0, show_default=True),
            click.option("--data", type=click.Path(path_type=Path), help="Folder of data files."),
            click.option("--out", type=click.Path(path_type=Path), help="Folder to write to."),
            click.option("--resume", is_flag=True, help="Continue an interrupted run."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON for machines."),
        )
    ):
        command = option(command)
    return command


def hyper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each hyper-parameter that an algorithm or base has."""
    base = click.Choice(list(BASES))
    command = click.option("--base", type=base, help="Optimiser in mime, fedopt, ….")(command)
    lean = "Upload dx alone (scaffold, option II)."
    command = click.option("--lean", is_flag=True, default=None, help=lean)(command)
    for name, kind in reversed(HYPER.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind)(command)
    return command


def algorithm_of(name: str, hyper: dict[str, Any]) -> Algorithm:
    """Return the algorithm of a name with these hyper-parameters."""
    cls = ALGORITHMS.get(name.lower())
    if cls is None:
        raise ValueError(f"{name!r} is no algorithm; pass one of {', '.join(ALGORITHMS)}.")
    wraps = cls is RichardsonRomberg
    names = [f.name for f in fields(FedAvg if wraps else cls)]
    if "base" in names:
        base = BASES[hyper.pop("base", "momentum")]
        own = {f.name: hyper.pop(f.name) for f in fields(base) if f.name in hyper}  # type: ignore[arg-type]
        hyper["base"] = base(**own)
    for given in hyper:
        if given not in names:
            option = f"--{given.replace('_', '-')}"
            raise ValueError(f"{name} takes no {option}; it has {', '.join(names)}.")
    step = "eta_l" if "eta_l" in names else "eta"
    if step not in hyper:
        option = f"--{step.replace('_', '-')}"
        raise ValueError(
            f"{name} needs a step size; pass {option}, or let `trimtab compare` find one."
        )
    if "K" in names and "K" not in hyper:
        raise ValueError(f"{name} needs a number of local steps; pass --K.")
    made: Algorithm = cls(FedAvg(**hyper)) if wraps else cls(**hyper)
    return made
