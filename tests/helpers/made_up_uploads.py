"""Run one round over N sites that send made-up uploads of ResNet-18's size; print the peak memory.

python -m tests.helpers.made_up_uploads N FOLDER
"""

import resource
import sys
from pathlib import Path

import torch

from trimtab import Scaffold
from trimtab.federation.message import Message
from trimtab.federation.protocol.coordinator import Coordinator

D = 11_173_962  # the parameters of ResNet-18 for ten classes


def reply(request, number):
    names = ("kind", "tag", "experiment", "site", "trimtab", "protocol")
    header = {name: request[name] for name in names}
    header |= {"status": "done", "n": 1, "d": D, "dtype": "float32", "base": request["accepted"]}
    work = request["kind"] == "work"
    if work:  # A reply without the tag and digest of the site's new state does not count.
        header |= {"state": request["tag"], "digest": f"{number:064x}"}
    return Message(header, {"0": torch.full((D,), number / 1e6)} if work else {})


def ask(requests, timeout):
    for number, (name, request) in enumerate(requests.items()):
        yield name, reply(request, number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = [f"site{i}" for i in range(int(sys.argv[1]))]
    algorithm = Scaffold(eta_l=0.1, K=10, lean=True)
    server = Coordinator(Path(sys.argv[2]), algorithm, names, x=torch.zeros(D), R=1)
    (done,) = server.run(ask)
    assert len(done.cohort) == len(names)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
