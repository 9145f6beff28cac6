"""Algorithms by name; no other module lists them. Torch is loaded when one is first used.

A user's algorithm is found as `mine.py:Mine`, as an entry point of the group `trimtab.algorithms`,
or by its name after `register(Mine)`.
"""

import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from trimtab._importing import load
from trimtab.errors import BadArgument, did_you_mean

_TITLES = {  # class, title and colour by name
    "sgd": ("Sgd", "SGD", "#444444"),
    "fedavg": ("FedAvg", "FedAvg", "#d1495b"),
    "fedprox": ("FedProx", "FedProx", "#edae49"),
    "scaffold": ("Scaffold", "SCAFFOLD", "#00798c"),
    "fedopt": ("FedOpt", "FedOpt", "#b5651d"),
    "mimelite": ("MimeLite", "MimeLite", "#f08c00"),
    "mime": ("Mime", "Mime", "#4f3b78"),
    "serveronly": ("ServerOnly", "server only", "#888888"),
    "richardsonromberg": ("RichardsonRomberg", "Richardson-Romberg", "#5a9367"),
    "scaffoldm": ("ScaffoldM", "SCAFFOLD-M", "#00aaff"),
    "feddyn": ("FedDyn", "FedDyn", "#88cc44"),
    "scaffnew": ("Scaffnew", "Scaffnew", "#0066dd"),
    "scallion": ("Scallion", "SCALLION", "#007711"),
    "fednova": ("FedNova", "FedNova", "#ff66cc"),
    "scaffoldopt": ("ScaffoldOpt", "ScaffoldOpt", "#552200"),
    "servermvr": ("ServerMvr", "server-only MVR", "#666600"),
    "mimelitemvr": ("MimeLiteMvr", "MimeLiteMVR", "#eeaa99"),
    "mimemvr": ("MimeMvr", "MimeMVR", "#880088"),
    "dane": ("Dane", "DANE", "#660033"),
}
NAMES = tuple(_TITLES)
# Sentences of a report compare other algorithms with these, which readers know.
_WELL_KNOWN = ("sgd", "fedavg", "scaffold")
_BASES = ("Momentum", "Adam", "AdamW", "Yogi", "Adagrad")
BASE_NAMES = tuple(map(str.lower, _BASES))
GROUP = "trimtab.algorithms"  # the group of entry points
# Colours of users' algorithms. The name decides which one, so that it is the same on every page.
_OTHERS = ("#30638e", "#9e2a2b", "#606c38", "#bc6c25", "#7b2d8b", "#2a7f62")


@dataclass(frozen=True)
class Kind:
    """Facts about an algorithm's class."""

    name: str  # in lower case, as on the command line
    cls: type[Any]
    title: str  # as papers write it
    colour: str
    shown: str  # the name of the class, for tables and sentences
    well_known: bool = False  # whether sentences compare other algorithms with it
    source: str = ""  # file.py:Class or module:Class; empty for algorithms of trimtab

    @cached_property
    def parameters(self) -> tuple[Any, ...]:
        """The hyper-parameters; a wrapped algorithm is replaced by its own."""
        from trimtab.core.hyper import parameters_of

        return parameters_of(self.cls)

    @property
    def step(self) -> str:
        """The name of the step size; empty if there is none."""
        return next((p.name for p in self.parameters if p.is_step), "")

    @property
    def has_K(self) -> bool:
        """Whether clients make K local steps."""
        return any(p.name == "K" for p in self.parameters)

    @cached_property
    def stateful(self) -> bool:
        """Whether clients keep a state from round to round."""
        import torch

        from trimtab.core import leaves

        return bool(leaves(trial_of(self).init_client(torch.zeros(2))))


_own: dict[str, Kind] = {}  # registered by users


def register(cls: type[Any], *, title: str | None = None, colour: str | None = None) -> type[Any]:
    """Register a user's algorithm under the name of its class; usable as a decorator.

    In a federation, a site runs the algorithms of trimtab and those that its own problem file
    registers, and no others.

    cls: a frozen dataclass with init_server, init_client and round.
    title: its name in charts and sentences; by default the name of the class.
    colour: its colour in charts, as "#00798c"; by default one that depends on the name.

    >>> register("mine.py:Mine")
    Traceback (most recent call last):
    ValueError: register: 'mine.py:Mine' is not a class; pass the class of an algorithm.
    """
    if not isinstance(cls, type):
        raise ValueError(f"register: {cls!r} is not a class; pass the class of an algorithm.")
    _checked(cls, cls.__name__)
    name = cls.__name__.lower()
    if name in _TITLES or name in _parts():
        raise ValueError(
            f"{cls.__name__}: trimtab has an algorithm of this name, or a part of one; choose "
            "another."
        )
    _own[name] = _kind_of_class(cls, title=title, colour=colour)
    return cls


def kind(what: Any) -> Kind:
    """Return the facts about an algorithm.

    what: a name, file.py:Class, a class or an instance; a wrapper has the facts of its algorithm.

    >>> kind("scaffold").title, kind("scaffold").step, kind("scaffold").stateful
    ('SCAFFOLD', 'eta_l', True)
    """
    if isinstance(what, str):
        return _named(what)
    if isinstance(what, type):
        return _kind_of_class(what)
    inner = getattr(what, "algorithm", None)
    if inner is None or not hasattr(inner, "init_server"):
        return _kind_of_class(type(what))
    found, wrapper = kind(inner), type(what).__name__
    return replace(
        found,
        name=f"{found.name}-{wrapper.lower()}",
        title=f"{found.title} ({wrapper})",
        shown=f"{found.shown} ({wrapper})",
    )


def known() -> list[str]:
    """Return the names that the command line accepts, apart from file.py:Class."""
    names = (*NAMES, *_own, *(point.name.lower() for point in entry_points(group=GROUP)))
    return list(dict.fromkeys(names))


def _named(name: str) -> Kind:
    lower = name.lower()
    if lower in _TITLES:
        return _builtin(lower)
    if lower in _own:
        return _own[lower]
    if re.search(r"\.py(:|$)", name):
        return _kind_of_class(_class_in(name), source=name)
    for point in entry_points(group=GROUP):
        if point.name.lower() == lower:
            return _kind_of_class(_checked(point.load(), point.value), source=point.value)
    raise BadArgument(
        "algorithm",
        "{_name!r} is not an algorithm{_near}; pass one of {_known}, or file.py:Class.",
        _name=name,
        _near=did_you_mean(name, known()),
        _known=", ".join(known()),
    )


def _builtin(name: str) -> Kind:
    cls, title, colour = _TITLES[name]
    module = import_module(f"trimtab.algorithms.{name}")
    return Kind(name, getattr(module, cls), title, colour, cls, name in _WELL_KNOWN)


def _class_in(spec: str) -> type[Any]:
    file, _, name = spec.partition(".py:")
    path = Path(spec if spec.endswith(".py") else f"{file}.py")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; pass file.py:Class.")
    module = load(path)
    cls = getattr(module, name, None)
    if cls is None:
        what = f"{path} has no {name}" if name else f"{spec} names no class"
        raise ValueError(f"{what}; pass {path}:{_one_of(module, 'Class')}.")
    return _checked(cls, spec)


def _one_of(module: Any, otherwise: str) -> str:
    """Return the name of an algorithm for an error message: one that the module defines, if any."""
    found = [c for c in vars(module).values() if isinstance(c, type) and hasattr(c, "init_server")]
    found.sort(key=lambda c: c.__module__ != module.__name__)
    return found[0].__name__ if found else otherwise


def _checked(cls: Any, where: str) -> type[Any]:
    missing = [n for n in ("init_server", "init_client", "round") if not hasattr(cls, n)]
    if not isinstance(cls, type) or not is_dataclass(cls) or missing:
        lacks = f"it has no {missing[0]}" if missing else "it is not a dataclass"
        raise ValueError(
            f"{where} is not an algorithm: {lacks}; write a frozen dataclass with init_server, "
            "init_client and round."
        )
    return cls


def _kind_of_class(
    cls: type[Any], *, title: str | None = None, colour: str | None = None, source: str = ""
) -> Kind:
    name = cls.__name__.lower()
    if cls.__module__ == f"trimtab.algorithms.{name}":
        return _builtin(name)
    # The title and colour that the user registered count, unless this call registers again.
    if name in _own and _own[name].cls is cls and title is None and colour is None:
        return _own[name]
    chosen = colour or _OTHERS[crc32(name.encode()) % len(_OTHERS)]
    where = source or f"{cls.__module__}:{cls.__qualname__}"
    return Kind(name, cls, title or cls.__name__, chosen, cls.__name__, source=where)


def algorithm_list(given: Any) -> list[Any]:
    """Return the names, classes and instances of a list; raise BadArgument if it is not one."""
    if isinstance(given, str | type) or hasattr(given, "init_server"):
        shown = repr(given.split(",")) if isinstance(given, str) else f"[{_written(given)}]"
        sentence = "{algorithms:{_given}} is not a list; pass {algorithms:{_list}}."
        raise BadArgument("algorithms", sentence, _given=_written(given), _list=shown)
    if not isinstance(given, Iterable):
        sentence = "{algorithms:{_given}}; pass a list of names, classes or instances."
        raise BadArgument("algorithms", sentence, _given=repr(given))
    listed = list(given)
    if not listed:
        raise BadArgument("algorithms", "{algorithms} is empty; pass one algorithm or more.")
    seen: list[Any] = []
    for each in listed:
        which: Any = each
        if isinstance(each, str | type):
            which = kind(each).name
            _checked(kind(each).cls, _written(each))
        elif not hasattr(each, "init_server"):
            sentence = "{_given} is not an algorithm; pass a name, a class or an instance."
            raise BadArgument("algorithms", sentence, _given=repr(each))
        if which in seen:
            sentence = "{algorithms} has {_name} twice; pass it once."
            raise BadArgument("algorithms", sentence, _name=_written(each))
        seen.append(which)
    return listed


def _written(algorithm: Any) -> str:
    return algorithm.__name__ if isinstance(algorithm, type) else repr(algorithm)


# -- built from names and values


def bases() -> Mapping[str, type[Any]]:
    """Return the base optimisers by name."""
    module = import_module("trimtab.algorithms.bases")
    return MappingProxyType({name.lower(): getattr(module, name) for name in _BASES})


def build(what: Any, **words: Any) -> Any:
    """Return an algorithm with these hyper-parameters.

    what: a name, file.py:Class, a class or a Kind.
    words: hyper-parameters by name. A base optimiser is given as `base="adam"` ("momentum" by
        default), with its own hyper-parameters among the others; `clip` clips its gradients.

    >>> build("mime", eta=0.1, K=5, base="momentum", beta=0.5)
    Mime(eta=0.1, K=5, base=Momentum(beta=0.5))
    """
    chosen = what if isinstance(what, Kind) else kind(what)
    words = _with_base(chosen, words)
    names = [p.name for p in chosen.parameters]
    for word in words:
        if word not in names:
            raise BadArgument(
                word,
                "{_kind} takes no {" + word + "}; it has " + braced(names) + ".",
                _kind=chosen.name,
            )
    _check_complete(chosen, words)
    return _assembled(chosen.cls, words)


def braced(names: Iterable[str]) -> str:
    """Return names as a part of the sentence of a BadArgument, which spells them as arguments."""
    return ", ".join("{" + name + "}" for name in names)


def _with_base(chosen: Kind, words: dict[str, Any]) -> dict[str, Any]:
    """Replace the name of a base optimiser, and its hyper-parameters, by an instance of it."""
    from trimtab.algorithms.bases import Clipped

    names = [p.name for p in chosen.parameters]
    if "base" not in names:
        return words
    base = words.get("base") or "momentum"
    if isinstance(base, str):
        if base not in BASE_NAMES:
            raise BadArgument(
                "base",
                "{_name!r} is not a base optimiser; pass one of {_known} as {base}.",
                _name=base,
                _known=", ".join(BASE_NAMES),
            )
        own = {f.name for f in fields(bases()[base])} & words.keys()
        base = bases()[base](**{name: words[name] for name in own})
        words = {name: value for name, value in words.items() if name not in own}
    clip = None if "clip" in names else words.get("clip")
    if clip is None:
        return words | {"base": base}
    try:
        base = Clipped(base, clip)
    except BadArgument:  # It names the field, norm.
        sentence = "{clip:{_value}}; pass a number that is positive."
        raise BadArgument("clip", sentence, _value=repr(clip)) from None
    return {name: value for name, value in words.items() if name != "clip"} | {"base": base}


def _check_complete(chosen: Kind, words: dict[str, Any]) -> None:
    for parameter in chosen.parameters:
        name = parameter.name
        if name in words or not parameter.required:
            continue
        if parameter.is_step:
            why = "needs a step size; pass {" + name + "}, or let `trimtab compare` find one."
        elif name == "K":
            why = "needs a number of local steps; pass {K}."
        else:
            why = "needs {" + name + "}; pass it."
        raise BadArgument(name, "{_kind} " + why, _kind=chosen.name)


def _assembled(cls: type[Any], words: dict[str, Any]) -> Any:
    from trimtab.core.hyper import own_parameters

    given = {}
    for parameter in own_parameters(cls):
        if parameter.wraps is not None:
            given[parameter.name] = _assembled(parameter.wraps, words)
        elif parameter.name in words:
            given[parameter.name] = words[parameter.name]
    return cls(**given)


def trial_of(chosen: Kind, **words: Any) -> Any:
    """Return an instance to inspect or check; words: hyper-parameters by name.

    The step size is 0.1, which is stable for L = 1, and K is 5, unless words has others.
    """
    own = {p.name for p in chosen.parameters}
    return build(chosen, **{n: v for n, v in ((chosen.step, 0.1), ("K", 5)) if n in own} | words)


# -- as JSON: names and hyper-parameters, but no code (docs/decisions/no-code-travels.md)


def encode(hyper: Any) -> Any:
    """Return an algorithm as JSON: names and hyper-parameters.

    >>> encode(build("mime", eta=0.1, K=5))
    {'kind': 'mime', 'eta': 0.1, 'K': 5, 'base': {'kind': 'momentum', 'beta': 0.9}}
    """
    if isinstance(hyper, tuple):
        return [encode(part) for part in hyper]
    if not is_dataclass(hyper) or isinstance(hyper, type):
        return hyper
    name = type(hyper).__name__.lower()
    admitted = _admitted()
    if admitted.get(name) is not type(hyper):
        raise ValueError(
            f"{hyper} is not in the registry, so sites do not know it; use one of "
            f"{', '.join(NAMES)}, or register({type(hyper).__name__}) in the problem file."
        )
    own = {"code": _digest(type(hyper))} if name in _own else {}
    return {"kind": name} | own | {f.name: encode(getattr(hyper, f.name)) for f in fields(hyper)}


def decode(description: Any) -> Any:
    """Return the algorithm that `encode` described.

    Raise ValueError if its class is not registered here, or has other source code here.
    """
    if isinstance(description, list):
        return tuple(decode(part) for part in description)
    if not isinstance(description, dict):
        return description
    name, code, admitted = description.get("kind"), description.get("code"), _admitted()
    if not isinstance(name, str) or name not in admitted:
        algorithms = ", ".join(each for each in admitted if each not in _parts())
        raise ValueError(f"there is no algorithm {name!r}; use one of {algorithms}.")
    if code is not None and code != _digest(admitted[name]):
        raise ValueError(
            f"{admitted[name].__name__} has other source code here than at the sender; use the "
            "same problem file everywhere."
        )
    hyper = {word: decode(v) for word, v in description.items() if word not in ("kind", "code")}
    try:
        return admitted[name](**hyper)
    except TypeError as error:
        raise ValueError(f"{name} cannot be built from {hyper} ({error}).") from None


def _admitted() -> dict[str, type[Any]]:
    own = {name: k.cls for name, k in _own.items()}
    return {name: _builtin(name).cls for name in NAMES} | _parts() | own


def _parts() -> dict[str, type[Any]]:
    """Return the classes that are parts or wrappers of algorithms, by name."""
    from trimtab.algorithms.bases import Clipped
    from trimtab.algorithms.scheduled import Cosine, Decay, Piecewise, Scheduled, Warmup
    from trimtab.algorithms.through import STAGES, Through
    from trimtab.core.hyper import Epochs

    schedules = (Scheduled, Cosine, Decay, Piecewise, Warmup)
    parts = (*bases().values(), Clipped, *map(type, STAGES), Through, Epochs, *schedules)
    return {cls.__name__.lower(): cls for cls in parts}


def _digest(cls: type[Any]) -> str:
    return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()[:16]
