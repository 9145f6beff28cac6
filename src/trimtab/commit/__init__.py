"""What makes a client's state count: the part of the commit protocol that every engine shares.

1. A client writes its new state durably under a fresh random tag (`States.put`), and only then
   answers, with the tag and the digest of the state. Numbers of rounds are no tags: after a resume
   from an older checkpoint they repeat.
2. The server writes the tag and digest that it accepted from each client (`Accepted`) into the
   checkpoint that has x and c, atomically. That checkpoint is the commit.
3. A request names what was accepted from its client. The client starts from that state (`settle`);
   a client that does not have it says so, and does nothing else.
"""

from trimtab.commit.states import START, Accepted, Mismatch, Stale, States, digest, settle

__all__ = ["START", "Accepted", "Mismatch", "Stale", "States", "digest", "settle"]
