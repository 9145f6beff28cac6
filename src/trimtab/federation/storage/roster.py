"""Who is in a federation, with which public key, and who is to leave. Nothing here needs torch.

The roster is the part `sites`, `leaving` and `former` of federation.json, and `RosterFile` is its
only writer: `federate join` and the running server may change it at one time, and both changes
count.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab._files import Lock
from trimtab.errors import InUse
from trimtab.federation.storage.keys import fingerprint
from trimtab.federation.storage.seal import read_sealed, write_sealed

FILE = "federation.json"
_PATIENCE = 10.0  # seconds; a change takes < 1 s, so whoever holds the file longer is stuck


@dataclass(frozen=True)
class Roster:
    """The sites by name, in the order of the clients, with their public keys."""

    sites: Mapping[str, str] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()  # sites that go before the next round
    former: Mapping[str, str] = field(default_factory=dict)  # keys that are let in no more, and why

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Roster":
        """Take the roster out of federation.json."""
        former = dict(content.get("former", {}))
        return cls(dict(content["sites"]), tuple(content.get("leaving", ())), former)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the sites' keys, by name."""
        return {name: fingerprint(key) for name, key in self.sites.items()}

    @property
    def remaining(self) -> list[str]:
        """The sites that are not to leave."""
        return [name for name in self.sites if name not in self.leaving]

    def joining(self, members: Collection[str]) -> list[str]:
        """Return the sites that are to join those that take part."""
        return [name for name in self.remaining if name not in members]

    def left(self, members: Collection[str]) -> list[str]:
        """Return the sites that were to leave and take part no more."""
        return [name for name in self.leaving if name not in members]

    def check_new(self, name: str) -> None:
        """Refuse a name that is taken."""
        if name in self.sites:
            raise ValueError(f"there is a site {name} already; give the new one another name.")

    def check_key(self, public_key: str) -> None:
        """Refuse a key that is, or was, a site's: a key that comes back may have been stolen."""
        shown = fingerprint(public_key)
        for name, key in self.sites.items():
            if fingerprint(key) == shown:
                raise ValueError(f"the key {shown} is that of site {name}; make a new one.")
        if shown in self.former:
            raise ValueError(f"the key {shown} was let in once ({self.former[shown]}); make a new.")


class RosterFile:
    """The roster in an operator's folder; each change is one read and one write under a lock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE

    def read(self) -> Roster:
        """Return the roster as it is now."""
        return Roster.from_json(read_sealed(self.path))

    def create(self, about: Mapping[str, Any], sites: Mapping[str, str]) -> None:
        """Write federation.json for the first time: what it says besides, and the first sites."""
        with self._locked():
            write_sealed(self.path, {**about, "sites": dict(sites), "leaving": []})

    def note(self, **facts: Any) -> None:
        """Change what federation.json says besides the sites."""
        with self._changing() as content:
            content.update(facts)

    def admit(self, name: str, public_key: str) -> None:
        """Let one more site in."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            roster.check_new(name)
            roster.check_key(public_key)
            content["sites"][name] = public_key

    def replace_key(self, name: str, public_key: str) -> None:
        """Let a site in with another key from now on, and no longer with the one it had."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            roster.check_key(public_key)
            old = roster.fingerprints[name]
            content["sites"][name] = public_key
            content["former"] = {**roster.former, old: f"{name} has another key now"}

    def remove_site(self, name: str) -> None:
        """Note that a site is to go."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            if name not in roster.sites:
                known = ", ".join(roster.sites)
                raise ValueError(f"there is no site {name!r}; the sites are {known}.")
            if not set(roster.remaining) - {name}:
                raise ValueError(f"{name!r} is the only site left; end the experiment instead.")
            content["leaving"] = list(dict.fromkeys((*roster.leaving, name)))

    def forget(self, name: str) -> None:
        """Strike out a site that has gone; its key opens nothing any more."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            content["leaving"] = [other for other in roster.leaving if other != name]
            if content["sites"].pop(name, None):
                why = f"{name} was let go"
                content["former"] = {**roster.former, roster.fingerprints[name]: why}

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Give the file's content to change; it is written if nothing is refused."""
        with self._locked():
            content = read_sealed(self.path)
            yield content
            write_sealed(self.path, content)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for whoever changes the file now."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                lock = Lock(self.folder)
                break
            except InUse:
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)
        with lock:
            yield
