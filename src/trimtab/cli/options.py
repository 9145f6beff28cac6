"""Options that several commands take, and the objects they are converted to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.algorithms import registry
from trimtab.algorithms.registry import BASE_NAMES, Kind
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.core import Algorithm
    from trimtab.studies.holdout import ProblemSpec

live_option = click.option(
    "--live", is_flag=True, help="Write the page while the command works; it reloads itself."
)
OWN = "trimtab.own"  # the key in the context of the options of a user's algorithm

# The hyper-parameters of all algorithms and bases that come with trimtab. They are repeated here so
# that help and completion need no torch; a test compares them with the registry.
PARAMETERS: dict[str, type] = {
    **{"eta_l": float, "eta": float, "K": int, "eta_g": float, "mu": float, "option": str},
    **{"a": float, "alpha": float, "p": float},
    **{"beta": float, "beta1": float, "beta2": float, "eps": float},
    **{"weight_decay": float, "clip": float},
}
_HELPS = {
    "eta_l": "Step size of the clients.",
    "eta": "Step size, where clients and server share it (sgd, mime, …).",
    "K": "Local steps in a round.",
    "eta_g": "Step size of the server.",
    "mu": "Weight of the proximal term (fedprox, dane).",
    "option": "How clients update their control variates: I or II (scaffold).",
    "a": "Weight of new gradients (scaffoldm, mimemvr, …).",
    "alpha": "Weight of the regularisation (feddyn) or of new states (scallion).",
    "p": "Probability of a round after a local step (scaffnew).",
    "beta": "Momentum of --base momentum.",
    "beta1": "Decay of the mean in adam, adamw and yogi.",
    "beta2": "Decay of the squares in adam, adamw and yogi.",
    "eps": "Added to the root of the squares in adam, adamw, yogi and adagrad.",
    "weight_decay": "Decoupled weight decay of --base adamw.",
    "clip": "Largest norm of the gradients that the base optimiser takes.",
}


class CountOrFraction(click.ParamType[int | float]):
    """Reads a whole number, or a fraction such as 0.2."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | float:
        """Read '20' as a number and '0.2' as a fraction."""
        try:
            # 1 is one client, 1.0 all of them, so that the text decides and not the value.
            return int(value) if str(value).lstrip("-").isdigit() else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor a fraction.", param, ctx)


class Numbers(click.ParamType[list[int]]):
    """Reads whole numbers with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """Read '1,5,20'."""
        try:
            return [int(part) for part in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,5,20.", param, ctx)


class ShareOrNone(click.ParamType[float | str]):
    """Reads a share such as 0.1, or the word none."""

    name = "share"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Read '0.1' as a number; return 'none' unchanged."""
        try:
            return "none" if value == "none" else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a share such as 0.1 nor none.", param, ctx)


@dataclass(frozen=True)
class RunOptions:
    """The options of all runs, apart from the problem and the algorithms."""

    S: int | float | None
    batch: int | float | None
    R: int
    target: float | None
    seed: int
    data: Path | None
    out: Path | None
    resume: bool
    as_json: bool
    metric: str | None
    split: float | str | None
    weights: str | None
    partition: str | None
    epochs: int | float | None
    init: Path | None
    slow: float
    lost: float
    available: Path | None
    force: bool
    log: str | None
    live: bool

    def problem_spec(self, spec: str) -> "ProblemSpec":
        """Return the problem of a name or file.py:function with these options."""
        from trimtab.studies.holdout import ProblemSpec

        return ProblemSpec(spec, self.seed, self.batch, self.data, self.partition, self.weights)


_RUN_OPTIONS = (
    click.option("--S", "S", type=CountOrFraction(), help="Clients per round: 20, or 0.2 of all."),
    click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all."),
    click.option(
        "-R", "R", type=int, default=200, show_default=True, help="Maximum number of rounds."
    ),
    click.option("--target", type=float, help="Accuracy to reach (regression: loss)."),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of the start, cohorts and mini-batches.",
    ),
    click.option("--data", type=click.Path(path_type=Path), help="Folder of data files."),
    click.option("--out", type=click.Path(path_type=Path), help="Folder to write to."),
    click.option("--resume", is_flag=True, help="Continue an interrupted run."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for machines."),
    click.option(
        "--metric", help="Metric to compare by: auc, f1, …, or one that the problem measures."
    ),
    click.option(
        "--split", type=ShareOrNone(), help="Share of rows held out for validation: 0.1, or none."
    ),
    click.option(
        "--weights",
        type=click.Choice(["uniform", "samples"]),
        help="Weights of clients: all equal, or by their samples.",
    ),
    click.option("--partition", help="Partition of built-in data, such as dirichlet:0.1."),
    click.option(
        "--epochs", type=CountOrFraction(), help="Local passes over each client's data, for --K."
    ),
    click.option("--init", type=click.Path(path_type=Path), help="Saved model to start from."),
    click.option("--slow", type=float, default=0.0, help="Share of clients that do less work."),
    click.option("--lost", type=float, default=0.0, help="Share of replies that get lost."),
    click.option(
        "--available", type=click.Path(path_type=Path), help="CSV of client,from,to (rounds)."
    ),
    click.option("--force", is_flag=True, help="Move an existing output folder aside."),
    click.option(
        "--log", type=click.Choice(["tensorboard"]), help="Log rounds for this tool while they run."
    ),
    live_option,
)


class Address(click.ParamType[str]):
    """The address of a cluster, shown as ADDRESS in the help."""

    name = "address"


cluster_option = click.option(
    "--cluster",
    type=Address(),
    is_flag=False,
    flag_value="here",
    help="Ray cluster to run on, such as 10.0.0.1:6379; without an address, one on this machine.",
)
"""--cluster [ADDRESS]; a word that follows it is the address."""


def cluster_of(given: str | None) -> str | bool:
    """Return the address of a cluster, True for one on this machine, False for none."""
    return False if given is None else True if given == "here" else given


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all runs to a command, which receives them as one `options`."""

    @wraps(command)
    def gathered(**words: Any) -> Any:
        options = RunOptions(**{f.name: words.pop(f.name) for f in fields(RunOptions)})
        return command(options=options, **words)

    # Decorators apply from the last to the first; help then has the order of _RUN_OPTIONS.
    for option in reversed(_RUN_OPTIONS):
        gathered = option(gathered)
    return gathered


def hyper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option per hyper-parameter of the algorithms and bases to a command."""
    base = click.Choice(BASE_NAMES)
    command = click.option("--base", type=base, help="Optimiser in mime, fedopt, ….")(command)
    lean = "Upload dx alone (scaffold, option II)."
    command = click.option("--lean/--no-lean", default=None, help=lean)(command)
    for name, kind in reversed(PARAMETERS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=_HELPS[name])(
            command
        )
    return command


def algorithm_of(name: str, words: dict[str, Any], own: Mapping[str, str] = {}) -> "Algorithm":
    """Return an algorithm with the hyper-parameters on the command line.

    name: as for `registry.kind`.
    words: options of `hyper_options`; None where one was not given.
    own: options that no algorithm of trimtab has, for a user's algorithm; none by default.
    """
    kind = registry.kind(name)
    given = {word: value for word, value in words.items() if value is not None}
    made: Algorithm = registry.build(kind, **given | converted(kind, own))
    return made


def with_epochs(name: str, words: dict[str, Any], epochs: float | None) -> dict[str, Any]:
    """Return the hyper-parameters; if epochs are given, K is that many passes over the data."""
    if epochs is None:
        return words
    from trimtab.core import Epochs

    if words.get("K") is not None:
        raise conflicting_steps_error()
    if not registry.kind(name).has_K:
        raise BadArgument("epochs", "{_name} makes no local steps; drop {epochs}.", _name=name)
    return words | {"K": Epochs(epochs)}


def conflicting_steps_error() -> BadArgument:
    """Return the error for a number of local steps together with a number of epochs."""
    return BadArgument(
        "epochs", "{epochs} and {K} both set the number of local steps; pass one of them."
    )


def converted(kind: Kind, own: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a user's own algorithm as its hyper-parameters."""
    parameters = {p.name: p for p in kind.parameters}
    words: dict[str, Any] = {}
    for option, value in own.items():
        name = option.removeprefix("--").replace("-", "_")
        if name not in parameters:
            raise BadArgument(
                "algorithm",
                "{_kind} takes no {_option}; it has " + registry.braced(parameters) + ".",
                _kind=kind.name,
                _option=option,
            )
        # Other types, such as Literal, are checked by the algorithm itself.
        declared = parameters[name].type
        known = click.types.convert_type(declared if declared in (int, float, bool) else str)
        words[name] = known.convert(value, None, None)
    return words


_SECTIONS = {
    "Problem": ("batch", "partition", "weights", "data", "metric", "split"),
    "Algorithm": ("algorithms", *PARAMETERS, "base", "lean", "epochs"),
    "Rounds": ("S", "R", "target", "patience", "seed", "init", "slow", "lost", "available"),
    "Search": ("seeds", "prefer", "minutes", "budget", "round_cost", "diagnosed", "baselines"),
    "Machines": ("jobs", "cluster", "shards", "snapshots"),
    "Output": ("out", "save", "resume", "force", "as_json", "log", "live"),
}


class GroupedCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section; those of no section come last."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        left = {option.name: option.get_help_record(ctx) for option in options}
        for title, names in (*_SECTIONS.items(), ("Options", tuple(left))):
            rows = [row for name in names if (row := left.pop(name, None)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class WithOwnOptions(GroupedCommand):
    """A command that passes unknown options to the algorithm: --clip 1.0, --clip=1.0."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move unknown options and their values to the context."""
        known = {option for p in self.get_params(ctx) for option in (*p.opts, *p.secondary_opts)}
        own: dict[str, str] = {}
        rest: list[str] = []
        left = list(args)
        while left:
            word = left.pop(0)
            option, equals, value = word.partition("=")
            if not option.startswith("--") or option in known or option == "--":
                rest.append(word)
            elif equals:
                own[option] = value
            else:
                # A negative number, -1, is a value; only a second option begins with two dashes.
                own[option] = left.pop(0) if left and not left[0].startswith("--") else "true"
        ctx.meta[OWN] = own
        return super().parse_args(ctx, rest)
