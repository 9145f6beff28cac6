"""A site that misbehaves, in another way each time.

Every third round it is honest: after three refusals in a row it would not be asked any more.

python -m tests.helpers.rogue_site FOLDER DATA
"""

import os
import signal
import sys
from pathlib import Path

from trimtab.federation.log import attached
from trimtab.federation.message import Message
from trimtab.federation.processes import worker
from trimtab.federation.processes.site import SiteProcess, serve
from trimtab.federation.protocol.site import Site

HONEST = Site.answer
WAYS = {
    1: ("shape", "array 0 has shape (7,), but (8,) is expected"),
    2: ("dtype", "array 0 has dtype torch.float32, but torch.float64 is expected"),
    4: ("nan", "array 0 holds NaN or infinity"),
    5: ("norm", "which is beyond the limit"),
    7: ("version", "it has trimtab 0.0.9 (protocol 0), the server"),
    8: ("name", "it claims the name 'a'"),
}


def answer(self, request):
    """Answer as an honest site does, then spoil it."""
    reply = HONEST(self, request)
    if request.header.get("kind") != "work" or request["r"] not in WAYS:
        return reply
    way, _ = WAYS[request["r"]]
    arrays, header = dict(reply.arrays), dict(reply.header)
    arrays["0"] = {
        "shape": lambda x: x[:-1].clone(),
        "dtype": lambda x: x.float(),
        "nan": lambda x: x / 0,
        "norm": lambda x: x * 1e12,
    }.get(way, lambda x: x)(arrays["0"])
    header |= {"version": {"trimtab": "0.0.9", "protocol": 0}, "name": {"site": "a"}}.get(way, {})
    return Message(header, arrays)


def main():
    """Be the worker of such a site."""
    Site.answer = answer
    worker.main()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    process = SiteProcess(folder, Path(sys.argv[2]))
    child = process.worker.child
    worker = "trimtab.federation.processes.worker"
    child.command = [part.replace(worker, __spec__.name) for part in child.command]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    child.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    signal.signal(signal.SIGTERM, lambda *_: process.stop.set())
    try:
        with attached(folder / "logs" / "site.log"):
            serve(process)
    finally:
        process.close()
