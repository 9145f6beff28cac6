"""SCAFFOLD in an app of Flower: a strategy for the ServerApp and a mod for the ClientApp.

Needs `pip install 'trimtab[flower]'`. It imports torch, Flower's public names, `trimtab.commit`,
`trimtab.torch` and `trimtab.errors` only. What a client keeps and what the server counts is the
commit protocol's (`trimtab.commit`), by these records of a training message:

- request: "trimtab.c" (c; empty before the first round has ended), and "trimtab": the experiment,
  a tag and a clock that are fresh for each attempt, and what was accepted from each client.
- reply: "trimtab.dc" (c_i_new - c_i), and "trimtab": the client's name, the tag, the tag of the
  state that it was computed from, and the digest of the new state.
"""

from trimtab.flower.client import Control, arguments, controls
from trimtab.flower.server import Scaffold

__all__ = ["Control", "Scaffold", "arguments", "controls"]
