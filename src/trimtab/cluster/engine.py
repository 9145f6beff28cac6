"""Ray itself: imported where it is used, connected to, and asked for its machines."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from trimtab.errors import BadArgument

MISSING = "a cluster needs Ray, which is not installed; run `pip install 'trimtab[cluster]'`."


def engine() -> Any:
    """Return the module of Ray; say what to install where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions do
    try:
        import ray
    except ImportError:
        raise ValueError(MISSING) from None
    return ray


def connect(address: str | None) -> Any:
    """Return Ray, connected: to a cluster, or with no address to one on this machine alone.

    Where the process is connected already, that connection is used.
    """
    ray = engine()
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS")
        alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(
                **({"address": address} if address else alone),
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BadArgument(
                "cluster",
                "there is no cluster at {_address} ({_why}); start one with `ray start`, or pass "
                "its address as {cluster}.",
                _address=address,
                _why=(str(error).strip().splitlines() or [""])[0].rstrip("."),
            ) from None
    _ship_users_modules(ray)
    return ray


def _ship_users_modules(ray: Any) -> None:
    """Let algorithms from users' own files travel as code: shards cannot import those files."""
    for name, module in list(sys.modules.items()):
        if name.startswith("users_"):
            ray.cloudpickle.register_pickle_by_value(module)


def places(ray: Any, resources: dict[str, float]) -> int:
    """Return for how many shards with such needs the machines have room, were they empty."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {name: amount for name, amount in resources.items() if amount}
    if not wanted:
        return len(alive)
    return sum(
        min(int(node.get(name, 0.0) // amount) for name, amount in wanted.items()) for node in alive
    )


def free_now(ray: Any, resources: dict[str, float]) -> bool:
    """Tell whether a shard with such needs could start somewhere at once."""
    free = ray._private.state.available_resources_per_node()
    return any(
        all(node.get(name, 0.0) >= amount for name, amount in resources.items())
        for node in free.values()
    )


def ranges(shards: int, actors: int) -> Sequence[tuple[int, int]]:
    """Return the ranges of virtual shards that so many actors own.

    >>> ranges(16, 3)
    [(0, 5), (5, 10), (10, 16)]
    """
    return [(a * shards // actors, (a + 1) * shards // actors) for a in range(actors)]
