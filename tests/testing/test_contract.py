"""trimtab's algorithms keep the contract, and each check rejects what it is there to reject."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch

import trimtab
from trimtab import (
    Adagrad,
    Adam,
    AdamW,
    Clipped,
    Dane,
    FedAvg,
    FedDyn,
    FedNova,
    FedOpt,
    FedProx,
    Mime,
    MimeLite,
    MimeLiteMvr,
    MimeMvr,
    Momentum,
    RichardsonRomberg,
    Scaffnew,
    Scaffold,
    ScaffoldM,
    ScaffoldOpt,
    Scallion,
    ServerMvr,
    ServerOnly,
    Sgd,
    Yogi,
    testing,
)
from trimtab.algorithms.fedavg import Server, Upload
from trimtab.testing import CHECKS, CONTROL_CHECKS, ContractError, check_algorithm, check_controls

BASES = (
    Momentum(),
    Adam(),
    Yogi(),
    Adagrad(),
    AdamW(eps=1e-3, weight_decay=0.0),
    Clipped(Momentum(), norm=1.0),
)
SCAFFOLDS = (
    Scaffold(eta_l=0.1, K=5),
    Scaffold(eta_l=0.1, K=5, option="I"),
    Scaffold(eta_l=0.1, K=5, lean=True),
    Scaffold(eta_l=0.1, K=1, eta_g=0.7),
)
CONTROLLED = (  # with SCAFFOLD's controls
    ScaffoldM(eta_l=0.1, K=5),
    ScaffoldM(eta_l=0.1, K=5, a=0.5, eta_g=0.7),
    Scallion(eta_l=0.1, K=5),
    ScaffoldOpt(eta_l=0.1, K=5, base=Momentum(0.5)),
    ScaffoldOpt(eta_l=0.02, K=5, base=Adam(eps=0.1), eta_g=0.7),
)
SUMMED = (  # whose controls add up as SCAFFOLD's, but are not the mean gradients of a round
    FedDyn(eta_l=0.1, K=5),
    FedDyn(eta_l=0.1, K=5, alpha=1.0),
    Scaffnew(eta_l=0.1),
    Scaffnew(eta_l=0.1, p=0.5),
    Scallion(eta_l=0.1, K=5, alpha=0.4, eta_g=0.7),
)
ALGORITHMS = (
    Sgd(eta=0.5),
    FedAvg(eta_l=0.1, K=5, eta_g=1.5),
    FedProx(eta_l=0.1, K=5),
    *SCAFFOLDS,
    RichardsonRomberg(FedAvg(eta_l=0.1, K=5)),
    *(FedOpt(eta_l=0.1, K=5, base=base, eta_g=0.1) for base in BASES),
    *(kind(eta=0.05, K=5, base=base) for kind in (Mime, MimeLite) for base in BASES),
    *(ServerOnly(eta=0.1, base=base) for base in BASES),
    Dane(eta_l=0.1, K=5),
    MimeMvr(eta=0.05, K=5),
    MimeLiteMvr(eta=0.05, K=5),
    ServerMvr(eta=0.1),
    *(ScaffoldOpt(eta_l=0.02, K=5, base=base) for base in BASES),
    FedNova(eta_l=0.1, K=5, eta_g=1.5),
    *SUMMED,
    *CONTROLLED,
)


def test_every_algorithm_is_checked() -> None:
    assert set(trimtab.ALGORITHMS.values()) <= {type(algorithm) for algorithm in ALGORITHMS}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_keeps_the_contract(algorithm: Any) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize("algorithm", SCAFFOLDS + CONTROLLED, ids=repr)
def test_scaffold_keeps_the_contract_of_controls(algorithm: Any) -> None:
    check_controls(algorithm)


@pytest.mark.parametrize("algorithm", SUMMED, ids=repr)
def test_controls_add_up(algorithm: Any) -> None:
    testing.check_control_sums(algorithm)
    with pytest.raises(ContractError, match="c_i is not the mean of its raw gradients"):
        check_controls(algorithm)


# -- wrong algorithms, each as small as can be


@dataclass
class Thawed:
    eta_l: float = 0.1


@dataclass(frozen=True)
class Roundless:
    eta_l: float = 0.1
    init_server = init_client = None


class Elsewhere(FedAvg):
    def init_server(self, x):
        return Server(x + 1)


class Nameless(FedAvg):
    def init_server(self, x):
        return (x,)


class SendsNumber(FedAvg):
    def local(self, g, state, x):
        return Upload(float(g(x).sum())), ()


class NothingIsNone(FedAvg):
    def init_client(self, x):
        return None


class ListAsState(FedAvg):
    def init_client(self, x):
        return [x]


class BroadcastsNumber(FedAvg):
    def round(self, server, clients):
        clients.run(self.local, server.x, self.eta_l)


class ServerForgets(FedAvg):
    def round(self, server, clients):
        super().round(server, clients)
        return Server(None)


class Growing(FedAvg):
    def local(self, g, state, x):
        return super().local(g, (), x)[0], (x,)


class DoubleServer(FedAvg):
    def round(self, server, clients):
        return Server(super().round(server, clients).x.double())


class DefaultState(FedAvg):
    def init_client(self, x):
        return torch.zeros(x.shape)

    def local(self, g, state, x):
        return super().local(g, (), x)[0], state


class CloseMouthed(FedAvg):
    __repr__ = object.__repr__


@dataclass(frozen=True, kw_only=True)
class Secretive(FedAvg):
    rho: float = field(default=0.0, repr=False)


class Lambda(FedAvg):
    def round(self, server, clients):
        (dx,) = clients.run(lambda *sent: self.local(*sent), server.x).mean()
        return Server(server.x + dx)


class StepsInPlace(FedAvg):
    def local(self, g, state, x):
        y = x
        y -= self.eta_l * g(y, 0)
        return Upload(-self.eta_l * g(y, 0)), ()


class KeepsWhatItComputed(Scaffold):
    def local(self, g, c_i, x, c):
        upload, c_i_new = super().local(replace(g, send=lambda upload: upload), c_i, x, c)
        return upload, c_i_new


class StateInPlace(Scaffold):
    def local(self, g, c_i, x, c):
        upload, c_i_new = super().local(g, c_i, x, c)
        return upload, c_i.copy_(c_i_new)


class ServerInPlace(FedAvg):
    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x.clone()).mean()
        return Server(server.x.add_(dx))


class Counting(FedAvg):
    def round(self, server, clients):
        object.__setattr__(self, "rounds", getattr(self, "rounds", 0) + 1)
        return super().round(server, clients)


class Gambling(FedAvg):
    def round(self, server, clients):
        return Server(super().round(server, clients).x + torch.randn(server.x.shape))


MEMORY: dict[str, Any] = {}


class Remembering(FedAvg):
    """Momentum kept in the module."""

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        MEMORY["m"] = dx + 0.5 * MEMORY.get("m", torch.zeros_like(dx))
        return Server(server.x + MEMORY["m"])


class RemembersItself(FedAvg):
    """Momentum kept in the algorithm."""

    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        object.__setattr__(self, "m", dx + 0.5 * getattr(self, "m", torch.zeros_like(dx)))
        return Server(server.x + self.m)


class NotANumber(Scaffold):
    def init_server(self, x):
        return super().init_server(x)._replace(c=torch.full_like(x, torch.nan))


class Bessel(FedAvg):
    def round(self, server, clients):
        replies = clients.run(self.local, server.x)
        return Server(server.x + replies.mean().dx / torch.tensor(len(replies) - 1))


class Relay(FedAvg):
    """Every client starts where the one before it stopped."""

    def round(self, server, clients):
        y = server.x

        def program(g, state, x):
            nonlocal y
            y = y - self.eta_l * g(y, 0)
            return Upload(y - x), ()

        return Server(server.x + clients.run(program, server.x).mean().dx)


class NormOfAll(FedAvg):
    def local(self, g, state, x):
        (dx,), _ = super().local(g, state, x)
        return Upload(dx / (1 + dx.norm())), ()


class Dot(FedAvg):
    def local(self, g, state, x):
        return Upload(-self.eta_l * g(x, 0) * torch.dot(g(x, 0), x)), ()


class SameForAll(Scaffold):
    def local(self, g, c_i, x, c):
        return super().local(g, c_i, x, c)[0], torch.zeros_like(x)


class LooksAtTheClass(FedAvg):
    def local(self, g, state, x):
        (dx,), _ = super().local(g, state, x)
        return Upload(0.5 * dx if isinstance(dx, torch.Tensor) else dx), ()


class InsistsOnTensors(FedAvg):
    def local(self, g, state, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError("x is no tensor")
        return super().local(g, state, x)


class Eavesdropping(FedAvg):
    """Moves are collected behind the back of `replies`."""

    def round(self, server, clients):
        moves = []

        def program(g, state, x):
            upload, _ = self.local(g, state, x)
            moves.append(upload.dx)
            return upload, ()

        clients.run(program, server.x)
        return Server(server.x + sum(moves) / len(moves))


class ScalesTheModel(FedAvg):
    def round(self, server, clients):
        (dx,) = clients.run(self.local, server.x).mean()
        return Server(self.eta_g * (server.x + dx))


class GradientAtZero(FedAvg):
    def local(self, g, state, x):
        return Upload(-self.eta_l * (g(x, 0) - g(torch.zeros_like(x), 0))), ()


class Wrong(NamedTuple):
    algorithm: Any
    check: str
    sentence: str  # its beginning


WRONG = (
    Wrong(FedAvg, "is_a_frozen_dataclass", "FedAvg: this is the class"),
    Wrong(Thawed(), "is_a_frozen_dataclass", "Thawed: it is not a frozen dataclass"),
    Wrong(Roundless(), "is_a_frozen_dataclass", "Roundless: it has no method round"),
    Wrong(Elsewhere, "has_states_of_tensors", "init_server(x).x is not x"),
    Wrong(Nameless, "has_states_of_tensors", "init_server(x).x is not x"),
    Wrong(SendsNumber, "has_states_of_tensors", "an upload holds"),
    Wrong(NothingIsNone, "has_states_of_tensors", "the client's state is a NoneType"),
    Wrong(ListAsState, "has_states_of_tensors", "the client's state is a list"),
    Wrong(BroadcastsNumber, "has_states_of_tensors", "a state or message holds 0.1"),
    Wrong(ServerForgets, "has_states_of_tensors", "the server's new state holds None"),
    Wrong(Growing, "has_states_of_tensors", "the client's state changes its shape"),
    Wrong(DoubleServer, "keeps_dtype", "server.x is torch.float64 where x is torch.float32"),
    Wrong(DefaultState, "keeps_dtype", "the client's state is torch.float32 where x is"),
    Wrong(CloseMouthed, "can_be_rebuilt", "pickle or repr of it or of its program fails"),
    Wrong(Secretive(eta_l=0.1, K=2, rho=1.0), "can_be_rebuilt", "its pickle or its repr"),
    Wrong(Lambda, "can_be_rebuilt", "pickle or repr of it or of its program fails"),
    Wrong(StepsInPlace, "is_pure", "the round changes the broadcast in place"),
    Wrong(StateInPlace, "is_pure", "the round changes the client's state in place"),
    Wrong(ServerInPlace, "is_pure", "the round changes the server's state in place"),
    Wrong(Counting, "is_pure", "the round changes the algorithm itself"),
    Wrong(Gambling, "is_pure", "the same round twice gives other bits"),
    Wrong(Remembering, "is_pure", "the same round twice gives other bits"),
    Wrong(FedAvg(eta_l=1e30, K=20), "stays_finite", "NaN or infinity after 0 rounds"),
    Wrong(NotANumber, "stays_finite", "NaN or infinity"),
    Wrong(Bessel, "stays_finite", "NaN or infinity"),
    Wrong(Relay, "ignores_the_order_of_clients", "another order of the clients"),
    Wrong(NormOfAll, "accepts_chunks", "a chunk of clients gives other results"),
    Wrong(Dot, "accepts_chunks", "on a chunk of 3 clients it fails ("),
    Wrong(SameForAll, "accepts_chunks", "on a chunk of 3 clients it fails ((upload, state)[1] has"),
    Wrong(LooksAtTheClass, "runs_alike_in_every_executor", "with lazy vectors it gives another"),
    Wrong(InsistsOnTensors, "runs_alike_in_every_executor", "with lazy vectors it fails (x is no"),
    Wrong(Eavesdropping, "survives_lost_replies", "a client whose reply was lost changes a state"),
    Wrong(StateInPlace, "survives_lost_replies", "a client whose reply was lost changes a state"),
    Wrong(Remembering, "survives_a_restart", "after save and load it gives other bits"),
    Wrong(RemembersItself, "survives_a_restart", "after save and load it gives other bits"),
    Wrong(ScalesTheModel, "rests_when_nobody_moves", "x changes though no client moves"),
    Wrong(GradientAtZero, "rests_at_the_optimum_of_equal_clients", "it leaves x* though"),
    Wrong(FedAvg, "control_is_the_mean_gradient", "it has no c in the server's state"),
    Wrong(KeepsWhatItComputed, "keeps_what_it_sent", "after round 1 when uploads are rounded; com"),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{w.check}-{w.sentence}")
def test_every_check_rejects_a_wrong_algorithm_in_one_sentence(wrong: Wrong) -> None:
    MEMORY.clear()
    algorithm = wrong.algorithm
    if isinstance(algorithm, type) and not wrong.sentence.endswith("the class"):
        algorithm = algorithm(eta_l=0.1, K=2)
    with pytest.raises(ContractError) as caught:
        getattr(testing, wrong.check)(algorithm)
    sentence = str(caught.value)
    assert wrong.sentence in sentence
    assert sentence.endswith(".")
    assert "; " in sentence
    assert "\n" not in sentence


def test_every_check_is_tried() -> None:
    tried = {wrong.check for wrong in WRONG}
    assert {check.__name__ for check in CHECKS} <= tried
    assert all(check.__doc__ for check in CHECKS + CONTROL_CHECKS)


def test_check_algorithm_and_check_controls_reject_too() -> None:
    MEMORY.clear()
    with pytest.raises(ContractError, match="Remembering: the same round twice"):
        check_algorithm(Remembering(eta_l=0.1, K=2))
    with pytest.raises(ContractError, match="FedAvg: it has no c"):
        check_controls(FedAvg(eta_l=0.1, K=2))


def test_what_an_algorithm_may_do() -> None:
    check_algorithm(Careful(eta_l=0.1, K=3, clip=1.0))


@dataclass(frozen=True)
class Careful:
    """Clipped SGD with momentum on each client: state of two parts, positional fields."""

    eta_l: float
    K: int
    clip: float

    def init_server(self, x):
        return Server(x)

    def init_client(self, x):
        return (torch.zeros_like(x), x.new_zeros(1))

    def local(self, g, state, x):
        m, steps = state
        y = x
        for k in range(self.K):
            m = 0.5 * m + g(y, k)
            length = torch.linalg.vector_norm(m, dim=-1, keepdim=True)
            y = y - self.eta_l * m * torch.clamp(self.clip / (length + 1e-12), max=1.0)
        return Upload(y - x), (m, steps + self.K)

    def round(self, server, clients):
        return Server(server.x + clients.run(self.local, server.x).mean().dx)
