"""Independent pieces of work, each a task of Ray."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trimtab.cluster import engine

RETRIES = 3  # a task whose machine is lost is run again <= 3 times


def tasks(
    address: str | None, questions: Mapping[str, Callable[[], Any]]
) -> Iterator[tuple[str, Any]]:
    """Run functions on the machines of a cluster; go through names and results as they come.

    What one raises is raised here when all others have ended, so that none of them is lost.
    """
    if not questions:
        return
    ray = engine.connect(address)
    run = ray.remote(_run).options(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")
    waiting = {run.remote(question): name for name, question in questions.items()}
    failed: list[str] = []
    try:
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            name = waiting.pop(done)
            try:
                said, result = ray.get(done)
            except ray.exceptions.RayError as error:
                said, result = "failed", (str(error).strip().splitlines() or [repr(error)])[-1]
            if said == "failed":
                failed.append(f"{name}: {result}")
            else:
                yield name, result
    finally:
        for task in waiting:
            ray.cancel(task, force=True)
    if failed:
        raise ValueError(failed[0])


def _run(question: Callable[[], Any]) -> tuple[str, Any]:
    """Return a result, or the sentence of an error with the machine it came from."""
    import os

    from trimtab._importing import describe_error
    from trimtab.cluster.actor import node_name

    os.environ["TRIMTAB_CORES"] = "1"
    try:
        return "done", question()
    except Exception as error:
        sentence = (
            str(error) if isinstance(error, ValueError | OSError) else f"{describe_error(error)}."
        )
        return "failed", f"{node_name()}: {sentence}"
