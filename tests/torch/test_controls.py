"""`trimtab.torch.Controls`: it equals `simulate`, every correct form of a step reaches the
stationary point and every wrong one does not, and each misuse has its sentence."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from trimtab import Scaffold, Supervised, simulate
from trimtab.problems.supervised.batches import Batches
from trimtab.torch import Controls, ServerControls

N = 5


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat(named):
    return torch.cat([value.reshape(-1) for value in named.values()])


def far(a, b):
    return float((flat(a) - flat(b)).abs().max())


def counted(server, controls):
    """Return sum p_i c_i of the states that the server has accepted."""
    total = dict.fromkeys(server.c, 0.0)
    for i, tag in enumerate(server.state_dict()["accepted"]):
        saved = controls[i].state_dict()
        c_i = saved["c_i"] if saved["tag"] == tag else saved["pending"]["c_i"]
        total = {name: total[name] + server.p[i] * c_i[name] for name in total}
    return total


def difference(model, x):
    return {name: p.detach() - x[name] for name, p in model.named_parameters() if p.requires_grad}


# -- the same rounds as the simulator's


class Tied(nn.Module):
    """Two layers that share a weight, after a frozen one."""

    def __init__(self):
        super().__init__()
        self.frozen, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight, self.out = self.a.weight, nn.Linear(4, 3)
        self.frozen.requires_grad_(False)

    def forward(self, X):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(self.frozen(X))))))


def labelled():
    clients = []
    for i in range(10):
        X = normal(24, 4, seed=i) + normal(4, seed=50 + i) / 2
        clients.append((X, (X @ normal(4, 3, seed=100 + i)).argmax(1)))
    return clients


def halves(part, model):
    """Accumulate the gradient of a mini-batch in two backward passes."""
    for rows in (slice(0, 3), slice(3, None)):
        y = part.y[rows]
        (F.cross_entropy(model(part.X[rows]), y) * len(y) / len(part.y)).backward()


def whole(part, model):
    F.cross_entropy(model(part.X), part.y).backward()


@pytest.mark.parametrize("backward", [whole, halves])
@pytest.mark.parametrize("kind", [lambda: nn.Linear(4, 3), Tied])
@pytest.mark.parametrize("weights", [None, range(1, 11)])
@pytest.mark.parametrize("S", [10, 3])
def test_a_loop_goes_through_the_points_of_the_simulator(S, weights, kind, backward):
    model = kind().double()
    problem = Supervised(model, F.cross_entropy, labelled(), batch=8, weights=weights)
    server = ServerControls(model, N=10, weights=weights)
    controls = [Controls(model) for _ in range(10)]
    sampled = simulate(Scaffold(eta_l=0.1, K=4, eta_g=0.7), problem, S=S)
    cohorts = [list(next(sampled).cohort) for _ in range(12)]
    lost = [cohort[0] if r % 3 == 2 else None for r, cohort in enumerate(cohorts)]
    simulation = simulate(
        Scaffold(eta_l=0.1, K=4, eta_g=0.7),
        problem,
        cohorts=[
            [i for i in cohort if i != gone] for cohort, gone in zip(cohorts, lost, strict=True)
        ],
    )
    for r, (cohort, gone) in enumerate(zip(cohorts, lost, strict=True)):
        for i in reversed(cohort):
            x, c, accepted = server.send(i)
            model.load_state_dict(x, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            controls[i].begin(c, optimizer, accepted=accepted)
            batches = Batches(problem.clients[i], 8, "reshuffle", (0, i, r + 1))
            for k in range(4):
                optimizer.zero_grad()
                backward(batches[k], model)
                controls[i].correct()
                optimizer.step()
            dc, K = controls[i].end()
            assert K == 4
            if i != gone:
                server.receive(i, difference(model, x), dc, controls[i].tag)
        server.step(eta_g=0.7)
        expected = next(simulation)
        assert (flat(server.x) - expected.x).abs().max() < 1e-12
        assert (flat(server.c) - expected.server.c).abs().max() < 1e-12
        assert far(server.c, counted(server, controls)) < 1e-12


def test_the_factor_of_those_that_replied_shows_at_once():
    """Without |S|/N a loop still reaches x*, so that only an audit of c finds it."""

    class Mutant(ServerControls):
        def step(self):
            share, c = sum(self.p[i] for i in self._replies), self.c
            super().step()
            self.c = {name: c[name] + (self.c[name] - c[name]) / share for name in c}

    for kind, small in ((ServerControls, True), (Mutant, False)):
        server, controls = loop(Controls, R=2, S=2, server=kind)[1:]
        assert (far(server.c, counted(server, controls)) < 1e-12) is small


# -- forms of a step


def regressions():
    """Return least squares of N clients whose solutions differ."""
    return [
        (X := normal(16, 3, seed=i), X @ normal(3, 2, seed=20 + i) + normal(16, 2, seed=40 + i) / 5)
        for i in range(N)
    ]


class Net(nn.Module):
    """A linear map, with a second part that takes no part in odd steps."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)

    def forward(self, X, k=0):
        return self.a(X) + (0 if k % 2 else self.b(X))


def sgd(parameters, **more):
    return torch.optim.SGD(parameters, **{"lr": 0.1, **more})


def momentum(parameters):
    return sgd(parameters, lr=0.03, momentum=0.9)


def adamw(parameters, **more):
    return torch.optim.AdamW(parameters, lr=0.1, eps=0.3, weight_decay=0.0, **more)


def fused(parameters):
    return adamw(parameters, fused=True)


def loop(
    kind,
    optimizer=sgd,
    *,
    R=80,
    S=None,
    K=4,
    unequal=False,
    clip=None,
    clip_first=False,
    pieces=1,
    each_piece=False,
    scaled=False,
    overflow=False,
    parts=False,
    lost=0,
    keep=False,
    server=ServerControls,
):
    """Train; return |grad f| at the end, the server and the clients' controls."""
    data, model = regressions(), Net().double() if parts else nn.Linear(3, 2).double()
    server = server(model, N=N)
    controls, optimizers = [kind(model) for _ in range(N)], {}
    for r in range(R):
        for i in range(N) if S is None else [(S * r + j) % N for j in range(S)]:
            x, c, accepted = server.send(i)
            model.load_state_dict(x)
            if not keep or i not in optimizers:
                optimizers[i] = optimizer(model.parameters())
            step, scaler = optimizers[i], None
            if scaled:
                scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
            own = scaled == "by the loop"
            controls[i].begin(c, step, scaler=None if own else scaler, accepted=accepted)
            skip, k = overflow, 0
            while k < (2 + i if unequal else K):
                step.zero_grad()
                for X, y in zip(*(part.chunk(pieces) for part in data[i]), strict=True):
                    out = model(X, k) if parts else model(X)
                    loss = F.mse_loss(out, y) / pieces * (float("inf") if skip and k == 1 else 1)
                    (scaler.scale(loss) if scaler else loss).backward()
                    if each_piece:
                        controls[i].correct()
                if own:
                    scaler.unscale_(step)
                if clip_first:
                    clip_grad_norm_(model.parameters(), clip)
                if not each_piece:
                    controls[i].correct()
                if clip and not clip_first:
                    clip_grad_norm_(model.parameters(), clip)
                if scaler:
                    scaler.step(step)
                    scaler.update()
                else:
                    step.step()
                skip, k = (False, k) if skip and k == 1 else (skip, k + 1)
            dc, _ = controls[i].end()
            if lost and (r + i) % lost == 0:
                continue
            server.receive(i, difference(model, x), dc, controls[i].tag)
        server.step()
    model.load_state_dict(server.x)
    model.zero_grad()
    for k in range(2):
        for X, y in data:
            (F.mse_loss(model(X, k) if parts else model(X), y) / 2 / N).backward()
    return float(flat({n: p.grad for n, p in model.named_parameters()}).norm()), server, controls


FORMS = {
    "SGD": {},
    "SGD, 3 of 5": {"S": 3, "R": 120},
    "accumulation": {"pieces": 2},
    "clipping": {"clip": 0.3},
    "momentum": {"optimizer": momentum},
    "momentum kept over rounds": {"optimizer": momentum, "keep": True, "R": 100},
    "AdamW": {"optimizer": adamw, "R": 100},
    "AdamW and clipping": {"optimizer": adamw, "clip": 0.3, "R": 100},
    "unequal steps": {"unequal": True},
    "no gradient in odd steps": {"parts": True, "R": 260},
    "GradScaler": {"scaled": True},
    "GradScaler, unscaled by the loop": {"scaled": "by the loop", "overflow": True, "K": 3},
    "GradScaler with a skipped step": {"scaled": True, "overflow": True, "K": 3},
    "GradScaler with skipped steps of a fused optimiser": {
        "optimizer": fused,
        "scaled": True,
        "overflow": True,
        "R": 100,
    },
    "lost replies": {"lost": 3, "R": 80},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_correct_form_reaches_the_stationary_point(form):
    found, server, controls = loop(Controls, **FORMS[form])
    assert found < 1e-7
    assert far(server.c, counted(server, controls)) < 1e-12


@pytest.mark.parametrize("optimizer", [sgd, momentum, adamw])
def test_a_parameter_without_a_gradient_has_one_of_zeros_from_the_first_step(optimizer):
    """As in `simulate`: the optimiser's memory goes on, whether or not zero_grad() keeps zeros."""

    def keeping(parameters):
        kept = optimizer(parameters)
        kept.zero_grad = lambda: type(kept).zero_grad(kept, set_to_none=False)
        return kept

    found = []
    for kind in (optimizer, keeping):
        torch.manual_seed(0)
        found.append(loop(Controls, kind, parts=True, R=2)[1])
    assert far(found[0].x, found[1].x) == far(found[0].c, found[1].c) == 0


class Unchecked(Controls):
    """Controls without the checks of correct(): what other implementations do."""

    def correct(self):
        now = self._round
        now.staged, now.fresh = None, True
        now.written.clear()
        super().correct()


class NotCalled(Unchecked):
    """FedAvg."""

    def correct(self):
        self._round.shift = {name: 0 * v for name, v in self._round.shift.items()}
        super().correct()


class EachPiece(Unchecked):
    """Called after each backward pass of an accumulation, it sums what it finds."""

    def correct(self):
        before = self._round.staged or {}
        super().correct()
        self._round.staged = {
            name: before.get(name, 0) + value / 2 for name, value in self._round.staged.items()
        }


class Twice(Unchecked):
    def correct(self):
        super().correct()
        with torch.no_grad():
            for name, p in self._round.parameters.items():
                p.grad += self._round.shift[name]


class WrongSign(Unchecked):
    def begin(self, c, *more, **options):
        super().begin(c, *more, **options)
        self._round.shift = {name: -v for name, v in self._round.shift.items()}


class MeanOfCorrected(Unchecked):
    def correct(self):
        super().correct()
        now = self._round
        now.staged = {name: p.grad.clone() for name, p in now.parameters.items()}


class MeanOfClipped(Controls):
    """c_i from what the optimiser saw, less the correction."""

    def begin(self, *more, **options):
        super().begin(*more, **options)
        now = self._round

        def seen(*_):
            now.staged = {name: p.grad - now.shift[name] for name, p in now.parameters.items()}

        now.handles.append(now.optimizer.register_step_pre_hook(seen))


class FromDisplacement(Controls):
    """Line 12 of SCAFFOLD, which holds for plain SGD only."""

    def begin(self, *more, **options):
        super().begin(*more, **options)
        self.start = {name: p.detach().clone() for name, p in self._round.parameters.items()}

    def end(self):
        now, lr = self._round, self._round.optimizer.param_groups[0]["lr"]
        for name, p in now.parameters.items():
            moved = (self.start[name] - p.detach()) / lr
            now.total[name] = moved - now.K * now.shift[name]
        return super().end()


class NotUnscaled(Unchecked):
    def correct(self):
        scaler, self._round.scaler = self._round.scaler, None
        super().correct()
        self._round.scaler = scaler


class CommitAtOnce(Controls):
    """The client does not wait until the server has its reply."""

    def begin(self, c, optimizer, **_):
        super().begin(c, optimizer)
        self._round.tag = _["accepted"].partition("/")[2]

    def end(self):
        found = super().end()
        self.commit()
        return found


MISTAKES = [
    (NotCalled, {}),
    (Twice, {}),
    (WrongSign, {"R": 40}),
    (MeanOfCorrected, {}),
    (EachPiece, {"pieces": 2, "each_piece": True}),
    (Unchecked, {"clip": 0.3, "clip_first": True}),
    (MeanOfClipped, {"clip": 0.05}),
    (FromDisplacement, {"optimizer": momentum, "R": 40}),
    (FromDisplacement, {"optimizer": adamw, "R": 100}),
    (NotUnscaled, {"scaled": True}),
    (CommitAtOnce, {"lost": 3, "R": 80}),
]


@pytest.mark.parametrize(("mistake", "form"), MISTAKES)
def test_a_wrong_form_does_not(mistake, form):
    try:
        found, *_ = loop(mistake, **form)
    except ValueError as error:
        found = str(error)
    assert "finite" in found if isinstance(found, str) else found > 1e-3


def test_the_mutants_are_the_correct_form_without_their_mistake():
    assert loop(Unchecked)[0] < 1e-7
    assert loop(FromDisplacement)[0] < 1e-7  # plain SGD
    assert loop(MeanOfClipped)[0] < 1e-7
    assert loop(CommitAtOnce)[0] < 1e-7


class CountsSkipped(Controls):
    """A step is counted before it is known whether GradScaler skips it."""

    def correct(self):
        super().correct()
        for name, gradient in self._round.staged.items():
            self._round.total[name] += gradient


def test_a_step_that_is_skipped_is_not_counted(refused):
    with refused("not all finite"):
        loop(CountsSkipped, scaled=True, overflow=True)


# -- misuse


class Bench:
    """A linear map with its optimiser and controls, in a round that has begun."""

    def __init__(self, **options):
        self.model = nn.Linear(3, 2).double()
        self.optimizer = sgd(self.model.parameters())
        self.controls = Controls(self.model, **options)
        self.controls.begin(None, self.optimizer)

    def backward(self, scaler=None):
        loss = self.model(normal(4, 3, seed=1)).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()

    def step(self):
        self.optimizer.zero_grad()
        self.backward()
        self.controls.correct()
        self.optimizer.step()


@pytest.fixture
def bench():
    return Bench()


def test_a_step_without_correct_is_refused(bench, refused):
    bench.backward()
    with refused("took a step without correct()"):
        bench.optimizer.step()


def test_correct_may_be_called_in_the_closure_of_the_step(bench):
    def closure():
        bench.optimizer.zero_grad()
        bench.backward()
        bench.controls.correct()

    bench.optimizer.step(closure)
    assert bench.controls.end()[1] == 1


def test_correct_needs_a_backward_pass(bench, refused):
    with refused("without a backward pass"):
        bench.controls.correct()
    bench.step()
    with refused("without a backward pass"):
        bench.controls.correct()


def test_correct_at_each_micro_batch_is_refused(bench, refused):
    bench.backward()
    bench.controls.correct()
    bench.backward()
    with refused("called twice", "accumulation"):
        bench.controls.correct()


def test_correct_before_the_last_micro_batch_is_refused(bench, refused):
    bench.backward()
    bench.controls.correct()
    bench.backward()
    with refused("between correct() and the optimizer's step"):
        bench.optimizer.step()


def test_clipping_before_correct_is_refused(bench, refused):
    bench.backward()
    clip_grad_norm_(bench.model.parameters(), 1.0)
    with refused("changed between backward() and correct()", "check=False"):
        bench.controls.correct()


def test_gradients_are_unscaled_once(bench):
    scaler = torch.amp.GradScaler("cpu")
    bench.controls.begin(None, bench.optimizer, scaler=scaler)
    bench.backward(scaler)
    scaler.unscale_(bench.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        bench.controls.correct()


def test_a_loop_may_change_its_gradients_if_it_says_so():
    bench = Bench(check=False)
    bench.backward()
    for p in bench.model.parameters():
        p.grad /= 2
    bench.controls.correct()
    bench.optimizer.step()
    assert bench.controls.end()[1] == 1


def test_a_gradient_that_is_replaced_counts_as_changed(bench, refused):
    bench.backward()
    bench.model.bias.grad = bench.model.bias.grad * 1.0
    with refused("bias"):
        bench.controls.correct()


def test_optimisers_that_do_not_fit_are_refused(refused):
    model = nn.Linear(3, 2)
    controls = Controls(model)
    with refused("LBFGS"):
        controls.begin(None, torch.optim.LBFGS(model.parameters()))
    with refused("trains a parameter that controls.model does not have"):
        controls.begin(None, sgd(nn.Linear(3, 2).parameters()))
    with refused("does not train parameter 'bias'", "requires_grad_(False)"):
        controls.begin(None, sgd([model.weight]))


@pytest.mark.parametrize("optimizer", [None, "sgd", torch.optim.SGD, iter([])])
def test_what_is_no_optimiser_is_refused(optimizer, refused):
    with refused(f"optimizer is {optimizer!r}"):
        Controls(nn.Linear(3, 2)).begin(None, optimizer)


def test_other_arguments_of_begin_are_refused(bench, refused):
    controls, optimizer = bench.controls, bench.optimizer
    for c in ("c", [1.0], ({}, 3), {"weight": 1.0, "bias": 2.0}, bench.model):
        with refused("c is not a dict of tensors"):
            controls.begin(c, optimizer)
    for scaler in ("x", True):
        with refused(f"scaler is {scaler!r}"):
            controls.begin(None, optimizer, scaler=scaler)
    for accepted in (3, ("start", "x"), b"start"):
        with refused(f"accepted is {accepted!r}"):
            controls.begin(None, optimizer, accepted=accepted)


@pytest.mark.parametrize("kind", [Controls, lambda model: ServerControls(model, N=2)])
def test_a_model_without_trainable_parameters_is_refused(kind, refused):
    for model in (None, "x", nn.Linear):
        with refused(f"model is {model!r}"):
            kind(model)
    with refused("model has no parameter with requires_grad=True"):
        kind(nn.Linear(3, 2).requires_grad_(False))


def test_an_optimiser_may_hold_frozen_parameters_too():
    model = Tied()
    Controls(model).begin(None, sgd(model.parameters()))


def test_other_parameters_are_refused(bench, refused):
    model, optimizer, controls = bench.model, bench.optimizer, bench.controls
    c = dict(controls.c_i)
    with refused("c has another parameter 'more'"):
        controls.begin({**c, "more": torch.zeros(1)}, optimizer)
    with refused("c has no parameter 'bias'"):
        controls.begin({"weight": c["weight"]}, optimizer)
    with refused("c has shape (2,) for parameter 'weight' instead of (2, 3)"):
        controls.begin({**c, "weight": c["bias"]}, optimizer)
    model.bias.requires_grad_(False)
    with refused("the model has no parameter 'bias'", "at all clients"):
        controls.begin(None, optimizer)
    for state in (None, {}, {"tag": "start"}, model.state_dict()):
        with refused("the state is not one of Controls"):
            controls.load_state_dict(state)
    with refused("the state has no parameter 'bias'"):
        controls.load_state_dict(Controls(model).state_dict())


def test_sparse_gradients_are_refused(refused):
    model = nn.Embedding(5, 2, sparse=True)
    controls = Controls(model)
    controls.begin(None, sgd(model.parameters()))
    with refused("'weight' is sparse", "sparse=False"):
        model(torch.tensor([1])).sum().backward()


def test_calls_outside_a_round_are_refused(refused):
    controls = Controls(nn.Linear(3, 2))
    with refused("correct() was called outside a round"):
        controls.correct()
    with refused("end() was called outside a round"):
        controls.end()
    with refused("commit() finds no finished round"):
        controls.commit()


def test_a_round_without_a_step_of_its_optimiser_is_refused(bench, refused):
    bench.backward()
    bench.controls.correct()
    sgd(bench.model.parameters()).step()
    with refused("no step of its optimizer"):
        bench.controls.end()


def test_a_client_that_neither_commits_nor_learns_what_was_accepted_is_refused(bench, refused):
    bench.step()
    bench.controls.end()
    with refused("commit()", "accepted="):
        bench.controls.begin(None, bench.optimizer)


def test_gradients_that_are_not_finite_are_not_sent(bench, refused):
    bench.model.weight.data.fill_(float("inf"))
    bench.step()
    with refused("not all finite"):
        bench.controls.end()


# -- what a round leaves


def test_a_round_may_be_dropped_and_begun_again(bench):
    bench.step()
    bench.controls.begin(None, bench.optimizer)
    bench.step()
    assert bench.controls.end()[1] == 1


def test_after_a_round_the_optimiser_is_free(bench, refused):
    bench.step()
    bench.controls.end()
    bench.backward()
    bench.optimizer.step()
    assert not any(p._post_accumulate_grad_hooks for p in bench.model.parameters())


def test_tags_are_fresh_and_no_number_of_torch_is_drawn(bench):
    before, tags = torch.get_rng_state(), set()
    for _ in range(3):
        bench.step()
        bench.controls.end()
        tags.add(bench.controls.tag)
        bench.controls.commit()
        bench.controls.begin(None, bench.optimizer)
    assert len(tags) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision_is_summed_in_single():
    model = nn.Linear(3, 2, dtype=torch.bfloat16)
    controls, optimizer = Controls(model), sgd(model.parameters())
    controls.begin(None, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=torch.bfloat16)).square().mean().backward()
        controls.correct()
        optimizer.step()
    assert {value.dtype for value in controls.end()[0].values()} == {torch.float32}
    assert ServerControls(model, N=1).send(0)[0]["weight"].dtype == torch.bfloat16
