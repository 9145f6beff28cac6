"""Ray in this process, as far as a driver needs it: calls are done at once; actors can be killed.

What travels is pickled and unpickled, so that nothing is shared that machines would not share.
"""

import itertools
import pickle
from types import SimpleNamespace

from trimtab.cluster import actor


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class NodeDiedError(RayError):
    pass


class ActorUnavailableError(RayActorError):
    pass


class ObjectLostError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class Reference:
    def __init__(self, content=None, error=None):
        self.content, self.error = content, error


class Method:
    def __init__(self, handle, name):
        self.handle, self.name = handle, name

    def remote(self, *arguments):
        return self.handle.call(self.name, *arguments)


class Handle:
    def __init__(self, ray, cls, arguments, resources):
        self.ray, self.resources = ray, resources
        self.number = next(ray.numbers)
        self.node = ray.place(self)
        self.alive, self.calls = True, []
        with ray.on(self.node):
            self.object = cls(*arguments)

    def __getattr__(self, name):
        return Method(self, name)

    def call(self, name, *arguments):
        self.ray.before(self, name, arguments)
        if not self.alive:
            return Reference(error=RayActorError("it is dead"))
        given = [a.content if isinstance(a, Reference) else pickle.dumps(a) for a in arguments]
        self.calls.append((name, *map(pickle.loads, given)))
        answer = getattr(self.object, name)(*map(pickle.loads, given))
        reference = Reference(pickle.dumps(answer))
        self.ray.after(self, name, arguments)
        return reference if self.alive else Reference(error=RayActorError("it died"))


class FakeRay:
    """A cluster of some nodes with one CPU each."""

    def __init__(self, nodes=3):
        self.numbers = itertools.count()
        self.nodes_alive = {f"n{j}": {"CPU": 1.0} for j in range(nodes)}
        self.handles = []
        self.exceptions = SimpleNamespace(
            RayError=RayError,
            RayActorError=RayActorError,
            NodeDiedError=NodeDiedError,
            ActorUnavailableError=ActorUnavailableError,
            ObjectLostError=ObjectLostError,
            OutOfMemoryError=OutOfMemoryError,
        )
        self.cloudpickle = pickle
        self.here = None
        self.before = self.after = lambda handle, name, arguments: None

    # -- what a driver calls

    def nodes(self):
        return [{"Alive": True, "Resources": has} for has in self.nodes_alive.values()]

    def remote(self, cls):
        def options(num_cpus, num_gpus, **others):
            needs = {"CPU": num_cpus, "GPU": num_gpus}
            return SimpleNamespace(remote=lambda *given: self.start(cls, given, needs))

        return SimpleNamespace(options=options)

    def start(self, cls, given, needs):
        handle = Handle(self, cls, pickle.loads(pickle.dumps(given)), needs)
        self.handles.append(handle)
        return handle

    def put(self, value):
        return Reference(pickle.dumps(value))

    def get(self, reference):
        if reference.error is not None:
            raise reference.error
        return pickle.loads(reference.content)

    def wait(self, references, timeout):
        return references, []

    def kill(self, handle):
        handle.alive = False

    # -- what a test does

    def place(self, handle):
        free = self.free()
        wanted = {name: amount for name, amount in handle.resources.items() if amount}
        for node, has in free.items():
            if all(has.get(name, 0.0) >= amount for name, amount in wanted.items()):
                return node
        raise AssertionError("no room")

    def free(self):
        free = {node: dict(has) for node, has in self.nodes_alive.items()}
        for handle in self.handles:
            if handle.alive and handle.node in free:
                for name, amount in handle.resources.items():
                    free[handle.node][name] = free[handle.node].get(name, 0.0) - amount
        return free

    def on(self, node):
        ray = self

        class On:
            def __enter__(self):
                ray.here = node

            def __exit__(self, *error):
                ray.here = None

        return On()

    def remove(self, node):
        del self.nodes_alive[node]
        for handle in self.handles:
            if handle.node == node:
                handle.alive = False

    def alive(self):
        return [handle for handle in self.handles if handle.alive]


def installed(monkeypatch, nodes=3):
    """Put a fake Ray in the place of the real one."""
    ray = FakeRay(nodes)
    monkeypatch.setattr("trimtab.cluster.engine.import_ray", lambda: ray)
    monkeypatch.setattr("trimtab.cluster.executor.import_ray", lambda: ray)
    monkeypatch.setattr("trimtab.cluster.engine.connect", lambda address: ray)
    monkeypatch.setattr(actor, "node_name", lambda: f"node {ray.here}")
    monkeypatch.setattr("trimtab.cluster.engine.has_free_node", lambda ray, needs: any(
        all(has.get(n, 0.0) >= a for n, a in needs.items()) for has in ray.free().values()
    ))  # fmt: skip
    # Instruction sets are chosen before a process loads torch, and this one has loaded it.
    monkeypatch.setattr("os.environ", dict(__import__("os").environ))
    return ray
