"""Clients over several shards, some of which die: the bits are those of `Tree`, without Ray."""

import errno
from dataclasses import astuple, replace
from itertools import islice

import pytest
import torch

from tests.helpers import fake_ray
from trimtab import (
    Cosine,
    Decay,
    Diverged,
    Epochs,
    FedAvg,
    FedDyn,
    Mime,
    Momentum,
    Quadratic,
    Ray,
    Rounding,
    Scaffnew,
    Scaffold,
    Scheduled,
    Simulation,
    Through,
    Tree,
    load_problem,
    simulate,
)
from trimtab.cluster.engine import MachineInfo, common_machine
from trimtab.core import leaves
from trimtab.errors import BadArgument
from trimtab.simulation.client_states import ClientStates

ALGORITHMS = {
    "fedavg": FedAvg(eta_l=0.1, K=3),
    "scaffold": Scaffold(eta_l=0.1, K=3),
    "unequal": Scaffold(eta_l=0.1, K=Epochs(2)),
    "feddyn": FedDyn(eta_l=0.1, K=3),
    "scaffnew": Scaffnew(eta_l=0.1, p=0.3),
    "mime": Mime(eta=0.05, K=3, base=Momentum()),
    "scheduled": Scheduled(Scaffold(eta_l=0.1, K=3), eta_l=Cosine(R=10)),
    "through": Through(Scaffold(eta_l=0.1, K=3), (Rounding(0.01),)),
    "both": Through(Scheduled(FedDyn(eta_l=0.1, K=3), eta_l=Decay(0.9)), (Rounding(0.01),)),
}
SCAFFOLD = ALGORITHMS["scaffold"]
HOW = {"S": 11, "lost": 0.2, "slow": 0.3, "seed": 3}
ROUNDS = 6


@pytest.fixture
def ray(monkeypatch):
    return fake_ray.installed(monkeypatch)


@pytest.fixture(scope="module")
def digits():
    return load_problem("digits", N=20, batch=16)


def advanced(sim, rounds=ROUNDS):
    lines = [replace(line, seconds=0.0, x=None, server=None) for line in islice(sim, rounds)]
    return [str(astuple(line)) for line in lines]


def after(executor, algorithm, problem, rounds=ROUNDS, **options):
    sim = simulate(algorithm, problem, executor=executor, **HOW | options)
    return sim, advanced(sim, rounds)


def bits(sim):
    own = [state for _, state in sim.states.items()]
    return [leaf for tree in (sim.server, *own) for leaf in leaves(tree)]


def same(one, other):
    a, b = bits(one), bits(other)
    return list(one.states) == list(other.states) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("actors", [1, 2, 3])
def test_the_bits_are_those_of_the_tree(ray, digits, algorithm, actors):
    slow = 0.0 if isinstance(algorithm, Scaffnew) else 0.3
    expected, lines = after(Tree(7), algorithm, digits, slow=slow)
    sim, found = after(Ray(shards=7, actors=actors), algorithm, digits, slow=slow)
    assert found == lines
    assert same(sim, expected)
    assert sim.runs_on.facts() == {"shards": 7, "actors": actors, "nodes": actors}


@pytest.mark.parametrize("algorithm", [SCAFFOLD, ALGORITHMS["mime"]], ids=["scaffold", "mime"])
@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("what", ["run", "commit", "after run", "after commit"])
def test_an_actor_may_die_at_any_time(ray, digits, tmp_path, algorithm, folder, what):
    expected, lines = after(Tree(7), algorithm, digits)
    killed = []

    def kill(when):
        def at(handle, name, arguments):
            asked = arguments[1] if name == "invoke" else ""
            rounds = sum(call[0] == "invoke" and call[2] == "commit" for call in handle.calls)
            due = f"{when}{asked}" == what and (rounds >= 3 or not leaves_of(algorithm))
            if due and handle.number not in killed and len(killed) < 3:
                killed.append(handle.number)
                handle.alive = False

        return at

    ray.before, ray.after = kill(""), kill("after ")
    snapshots = tmp_path / "snapshots" if folder else None
    sim, found = after(Ray(shards=7, snapshots=snapshots, every=2), algorithm, digits)
    ray.before = ray.after = lambda *_: None
    assert found == lines
    assert same(sim, expected)
    if "run" in what or leaves_of(algorithm):
        assert killed
        assert sim.runs_on.facts()["recoveries"]
    assert len(ray.alive()) == 3


def leaves_of(algorithm):
    return leaves(algorithm.init_client(torch.zeros(2)))


def test_what_a_recovery_took_is_told(ray, digits, tmp_path):
    for folder, rounds in ((None, 4), (tmp_path, 1)):
        sim = simulate(SCAFFOLD, digits, S=20, executor=Ray(shards=4, snapshots=folder, every=3))
        advanced(sim, 4)
        ray.alive()[0].alive = False
        advanced(sim, 1)
        (told,) = sim.runs_on.facts()["recoveries"]
        assert (told["r"], told["rounds"], told["shards"]) == (5, rounds, (0, 1))
        assert told["seconds"] >= 0
        sim.runs_on.close()
        assert not ray.alive()


def test_a_lost_shard_runs_its_own_clients_only(ray, digits):
    sim, _ = after(Ray(shards=4, actors=2), SCAFFOLD, digits)
    ray.alive()[0].alive = False
    next(sim)
    new = ray.alive()[-1]
    replayed = [call for call in new.calls if call[0] == "invoke" and call[2] == "replay"]
    assert replayed
    for _, _, _, _, exchanges, answered in replayed:
        clients = {i for _, own in exchanges for i in own} | set(answered)
        assert clients
        assert {i % 4 for i in clients} <= {0, 1}


def test_a_node_that_is_lost_is_waited_for_then_its_clients_move(ray, digits):
    expected, lines = after(Tree(7), SCAFFOLD, digits, rounds=8)
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=7, wait=0.3), **HOW)
    found = advanced(sim, 4)
    ray.remove("n1")
    found += advanced(sim, 2)  # nobody comes back, so that two machines have three shards
    assert {handle.node for handle in ray.alive()} == {"n0", "n2"}
    ray.nodes_alive["n1"] = {"CPU": 1.0}
    ray.remove("n2")
    found += advanced(sim, 2)
    assert "n1" in {handle.node for handle in ray.alive()}
    assert found == lines
    assert same(sim, expected)


def test_a_shard_that_was_given_up_answers_nobody(ray, digits):
    sim, _ = after(Ray(shards=4, actors=2), SCAFFOLD, digits)
    old = ray.alive()[0]
    old.alive = False
    next(sim)
    old.alive = True  # It was cut off, and is back.
    slot = sim.runs_on.slots()[0]
    answer = ray.get(old.invoke.remote(slot.incarnation, "discard"))
    assert "incarnation 1, and the request is for incarnation 2; another" in answer.sentence
    assert slot.handle is not old


def test_a_snapshot_of_a_shard_that_was_given_up_does_not_count(ray, digits, tmp_path):
    expected, _ = after(Tree(4), SCAFFOLD, digits, rounds=8)
    how = Ray(shards=4, actors=2, snapshots=tmp_path, every=100)
    sim, _ = after(how, SCAFFOLD, digits, rounds=3)
    old = ray.alive()[0]
    old.alive = False
    advanced(sim, 2)
    old.alive = True
    mark = f"r{9:08}-i1-{sim.runs_on.run_id}"
    ray.get(old.invoke.remote(1, "snapshot", str(tmp_path), mark, []))
    assert list(tmp_path.glob(f"*{mark}*"))
    old.alive = False
    ray.alive()[0].alive = False
    advanced(sim, 3)
    assert same(sim, expected)


def test_an_answer_is_given_twice_but_computed_once(ray, digits):
    sim, _ = after(Ray(shards=4, actors=1), SCAFFOLD, digits)
    seen = []

    def lose(handle, name, arguments):
        if name == "invoke" and arguments[1] == "run" and arguments[2] == 7 and not seen:
            seen.append(handle)

    ray.before = lose
    usual = ray.get

    def get(reference):
        if len(seen) == 1:
            seen.append("lost")
            raise fake_ray.ActorUnavailableError("try again")
        return usual(reference)

    ray.get = get
    next(sim)
    assert seen[1:] == ["lost"]
    expected, _ = after(Tree(4), SCAFFOLD, digits, rounds=7)
    assert same(sim, expected)
    assert not sim.runs_on.recoveries


def test_actors_that_die_again_and_again_end_the_run(ray, digits):
    sim, _ = after(Ray(shards=4, actors=2, wait=0.0), SCAFFOLD, digits, rounds=2)
    ray.alive()[0].alive = False

    def kill(handle, name, arguments):
        handle.alive = handle.alive and name != "create_shard"

    ray.before = kill
    with pytest.raises(ValueError, match="5 actors in a row died while shards 0 to 1 were rebuilt"):
        next(sim)


def test_a_round_that_diverges_leaves_no_trace(ray, digits):
    expected = simulate(SCAFFOLD, digits, executor=Tree(4), **HOW)
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=4), **HOW)
    for each in (expected, sim):
        advanced(each, 3)
        each.algorithm = Scaffold(eta_l=1e38, K=3)
        with pytest.raises(Diverged):
            next(each)
        each.algorithm = SCAFFOLD
        advanced(each, 3)
    assert sim.r == 6
    assert same(sim, expected)


# -- saved and resumed


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_run_is_resumed_with_more_or_fewer_machines(ray, digits, tmp_path, folder, then):
    snapshots = tmp_path / "snapshots" if folder else None
    expected, _ = after(Tree(7), SCAFFOLD, digits, rounds=9)
    sim, _ = after(Ray(shards=7, actors=2, snapshots=snapshots, every=2), SCAFFOLD, digits, 5)
    sim.save(tmp_path / "sim")
    advanced(sim, 1)  # lost, when the driver is killed
    sim.runs_on.close()
    how = Ray(shards=7, actors=then, snapshots=snapshots, every=2)
    again = Simulation.load(tmp_path / "sim", SCAFFOLD, digits, executor=how)
    advanced(again, 2)
    ray.alive()[0].alive = False
    advanced(again, 2)
    assert again.runs_on.recoveries
    assert same(again, expected)


def test_the_states_of_a_cluster_can_be_taken_home(ray, digits, tmp_path):
    expected, _ = after(Tree(7), SCAFFOLD, digits, rounds=7)
    sim, _ = after(Ray(shards=7, snapshots=tmp_path / "s"), SCAFFOLD, digits, rounds=5)
    sim.save(tmp_path / "sim")
    sim.runs_on.close()
    with pytest.raises(BadArgument, match="was run by the executor 'ray-7'"):
        Simulation.load(tmp_path / "sim", SCAFFOLD, digits)
    home = Simulation.load(tmp_path / "sim", SCAFFOLD, digits, executor=Tree(7))
    assert isinstance(home.states, ClientStates)
    elsewhere = Ray(shards=7, snapshots=tmp_path / "other")
    away = Simulation.load(tmp_path / "sim", SCAFFOLD, digits, executor=elsewhere)
    for each in (home, away):
        advanced(each, 2)
        assert same(each, expected)


def test_snapshots_hold_what_was_touched_and_old_ones_go(ray, digits, tmp_path):
    sim = simulate(SCAFFOLD, digits, S=2, seed=1, executor=Ray(shards=2, snapshots=tmp_path))
    advanced(sim, 1)
    sim.save(tmp_path / "sim")
    first = {path.name for path in tmp_path.glob("shard-*")}
    for _ in range(60):
        advanced(sim, 1)
        sim.save(tmp_path / "sim")
    files = list(tmp_path.glob("shard-*"))
    assert len(files) < 60  # of 122 that were written
    assert not first & {path.name for path in files}
    kept = sum(file.rows for chain in sim.runs_on.snapshots.chains for file in chain.files)
    assert 20 <= kept < 80
    expected = bits(sim)
    sim.runs_on.close()
    again = Simulation.load(
        tmp_path / "sim", SCAFFOLD, digits, executor=Ray(shards=2, snapshots=tmp_path)
    )
    assert all(map(torch.equal, bits(again), expected))


def test_what_an_older_checkpoint_names_is_kept(ray, digits, tmp_path):
    how = Ray(shards=2, snapshots=tmp_path)
    sim = simulate(SCAFFOLD, digits, S=2, seed=1, executor=how)
    advanced(sim, 3)
    sim.save(tmp_path / "old")
    expected, _ = bits(sim), advanced(sim, 1)
    for _ in range(20):
        advanced(sim, 1)
        sim.save(tmp_path / "new")
    sim.runs_on.close()
    old = Simulation.load(tmp_path / "old", SCAFFOLD, digits, executor=how)
    assert all(map(torch.equal, bits(old), expected))


def test_snapshots_of_another_number_of_shards_are_refused(ray, digits, tmp_path):
    sim, _ = after(Ray(shards=7, snapshots=tmp_path), SCAFFOLD, digits, rounds=1)
    sim.save(tmp_path / "sim")
    with pytest.raises(ValueError, match=r"are of 7 shards, not 4; pass the number"):
        Simulation.load(
            tmp_path / "sim", SCAFFOLD, digits, executor=Ray(shards=4, snapshots=tmp_path)
        )


def test_the_log_is_dropped_with_a_snapshot(ray, digits, tmp_path):
    sim, _ = after(Ray(shards=4, snapshots=tmp_path, every=3), SCAFFOLD, digits, rounds=4)
    assert len(sim.runs_on.log) == 1
    sim.runs_on.close()
    stateless, _ = after(Ray(shards=4, snapshots=tmp_path, every=3), FedAvg(eta_l=0.1, K=3), digits)
    assert len(stateless.runs_on.log) == 0


def test_the_store_is_that_of_the_protocol(ray, digits):
    tree, _ = after(Tree(4), SCAFFOLD, digits)
    sim, _ = after(Ray(shards=4), SCAFFOLD, digits)
    states = sim.states
    assert len(states) == len(tree.states)
    client = next(iter(states))
    assert client in states
    assert 99 not in states
    assert torch.equal(states[client], states.latest(client))
    with pytest.raises(KeyError):
        states[99]
    assert states.in_memory == tree.states.in_memory
    assert sim.audit() == pytest.approx(tree.audit())


def test_states_go_to_disk_beyond_the_limit_of_all_actors(ray, digits):
    limit = 3 * 4 * digits.d
    sim, _ = after(Ray(shards=4, actors=2), SCAFFOLD, digits, memory=limit)
    assert 0 < sim.states.in_memory <= limit
    assert sim.states.on_disk > 0
    assert same(sim, after(Tree(4), SCAFFOLD, digits)[0])


# -- problems


PROBLEM = """
import os
import trimtab


def problem(N=20):
    if os.environ.get("BROKEN") == "1":
        raise RuntimeError("there is no such disk")
    return trimtab.load_problem("digits", N=N, batch=int(os.environ.get("BATCH", 16)))
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROBLEM)
    return path


def at_node(ray, number, **variables):
    """Let one node have other variables in its environment."""
    import os

    def before(handle, name, arguments):
        for key, value in variables.items():
            os.environ.pop(key, None)
            if handle.node == f"n{number}":
                os.environ[key] = value

    ray.before = before


def test_a_file_is_read_on_every_machine(ray, mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    problem = load_problem("mine.py:problem", N=12).replace(l2=0.01)
    monkeypatch.chdir("/")
    sim, _ = after(Ray(shards=4), SCAFFOLD, problem, rounds=2)
    assert same(sim, after(Tree(4), SCAFFOLD, problem, rounds=2)[0])


@pytest.mark.parametrize("change", ["split", "weights", "metric"])
def test_what_is_made_of_a_loaded_problem_is_made_there_too(ray, digits, change):
    from trimtab.problems.problem import with_target_metric

    changed = {
        "split": lambda: digits.split(0.2, 5),
        "weights": lambda: digits.replace(weights="samples"),
        "metric": lambda: with_target_metric(digits, "f1"),
    }[change]()
    sim, _ = after(Ray(shards=4), SCAFFOLD, changed, rounds=2)
    assert same(sim, after(Tree(4), SCAFFOLD, changed, rounds=2)[0])


def test_a_problem_that_fails_at_one_node_is_told_with_the_node(ray, mine):
    problem = load_problem(f"{mine}:problem")
    at_node(ray, 1, BROKEN="1")
    with pytest.raises(ValueError, match=r"^node n1: .*mine\.py.*there is no such disk.*fix it"):
        after(Ray(shards=4), SCAFFOLD, problem)


def test_another_problem_at_one_node_is_refused(ray, mine):
    problem = load_problem(f"{mine}:problem")
    at_node(ray, 2, BATCH="8")
    with pytest.raises(ValueError, match=r"^node n2: .*batch was 16, is now 8; put the same file"):
        after(Ray(shards=4), SCAFFOLD, problem)


def test_a_problem_without_an_origin_is_refused_or_sent(ray):
    problem = Quadratic(A=[1.0, 2.0, 3.0], b=[0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"this Quadratic was made here; load it with .*ship=True"):
        simulate(SCAFFOLD, problem, executor=Ray())
    sim = simulate(SCAFFOLD, problem, executor=Ray(shards=4, ship=True))
    tree = simulate(SCAFFOLD, problem, executor=Tree(4))
    assert advanced(sim) == advanced(tree)
    assert same(sim, tree)


def test_a_changed_problem_has_no_origin_if_the_change_cannot_be_repeated(ray, digits):
    changed = digits.replace(loss=lambda output, y: torch.nn.functional.cross_entropy(output, y))
    with pytest.raises(ValueError, match="was made here"):
        simulate(SCAFFOLD, changed, executor=Ray())


def test_a_full_disk_is_told_with_its_node(ray, digits, monkeypatch):
    from trimtab.simulation import state_rows

    usual = state_rows.DiskRows._transfer

    def full(self, some, number, data):
        if ray.here == "n1" and some.__name__ == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        return usual(self, some, number, data)

    monkeypatch.setattr(state_rows.DiskRows, "_transfer", full)
    ray.before = lambda handle, *_: setattr(ray, "here", handle.node)
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=4), memory=0, **HOW)
    with pytest.raises(OSError, match=r"^node n1: .* cannot take more client states \(No space"):
        next(sim)
    ray.before = lambda *_: None
    ray.here = None
    advanced(sim)  # there is space again
    assert same(sim, after(Tree(4), SCAFFOLD, digits)[0])


def test_a_full_folder_of_snapshots_costs_no_round(ray, digits, tmp_path, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trimtab.cluster.shard.write_tensors", full)
    sim, _ = after(Ray(shards=4, snapshots=tmp_path, every=2), SCAFFOLD, digits)
    assert "node n0: " in caplog.text
    assert "cannot take a snapshot (No space left on device)" in caplog.text
    assert same(sim, after(Tree(4), SCAFFOLD, digits)[0])
    with pytest.raises(OSError, match=r"^node n0: .* cannot take a snapshot"):
        sim.save(tmp_path / "sim")


def test_a_snapshot_whose_answer_got_lost_is_told_again(ray, digits, tmp_path):
    sim, _ = after(Ray(shards=4, actors=1, snapshots=tmp_path), SCAFFOLD, digits, rounds=3)
    usual, lost = ray.get, []

    def get(reference):
        if "snapshot" in ray.handles[-1].calls[-1] and not lost:
            lost.append(reference)
            raise fake_ray.ActorUnavailableError("try again")
        return usual(reference)

    ray.get = get
    sim.save(tmp_path / "sim")
    assert lost
    expected = bits(sim)
    ray.alive()[0].alive = False
    assert all(map(torch.equal, bits(sim), expected))
    assert sim.runs_on.recoveries[0].rounds == 0


# -- machines


HERE = MachineInfo("node a", "3.11", "2.13.0", "1.0", 3, "avx512", "AVX512")


def test_all_machines_use_what_they_have_in_common():
    other = replace(HERE, node="node b", kernel="avx2", instructions="AVX2")
    common = common_machine([HERE, other, HERE])
    assert (common.kernel, common.instructions) == ("avx2", "AVX2")
    assert common_machine([HERE, replace(HERE, kernel="none")]).kernel == "none"


def test_other_versions_are_refused():
    with pytest.raises(
        ValueError, match=r"node b has torch 2\.12\.0, node a has 2\.13\.0; install"
    ):
        common_machine([HERE, replace(HERE, node="node b", torch="2.12.0")])


def test_a_machine_with_narrower_instructions_sets_the_pace(ray, digits, monkeypatch):
    usual = fake_ray.actor.this_machine
    chosen = []

    def machine(node):
        import os

        kernel = os.environ.get("TRIMTAB_NATIVE", "avx512")
        chosen.append((node, kernel))
        return replace(usual(node), kernel="any" if node == "node n1" else kernel)

    monkeypatch.setattr(fake_ray.actor, "this_machine", machine)
    monkeypatch.setattr("trimtab.cluster.actor_pool.this_machine", machine)
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=4), **HOW)
    next(sim)
    assert sim.runs_on.pool.machine.kernel == "any"
    assert [kernel for node, kernel in chosen if node == "node n0"][-1] == "any"


def test_more_actors_than_there_is_room_for_are_refused(ray, digits):
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=8, actors=5))
    with pytest.raises(BadArgument, match=r"actors=5 with 1 CPU each do not fit .* room for 3"):
        next(sim)
    with pytest.raises(BadArgument, match=r"actors=9; pass a whole number from 1 to the 8 shards"):
        Ray(shards=8, actors=9)
    with pytest.raises(BadArgument, match=r"every=0; pass rounds >= 1"):
        Ray(every=0)


def test_an_actor_takes_a_gpu(ray, digits):
    ray.nodes_alive["n2"]["GPU"] = 1.0
    sim = simulate(SCAFFOLD, digits, executor=Ray(shards=4, gpus=1))
    next(sim)
    assert [handle.node for handle in ray.alive()] == ["n2"]
    assert sim.runs_on.facts()["actors"] == 1
