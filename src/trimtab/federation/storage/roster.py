"""The sites of a federation, their public keys, and those that are to leave. Nothing needs torch.

The roster is a part of federation.json, and `RosterFile` is its only writer: `federate register`
and the running server may change it at the same time, and both changes count.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trimtab._files import Lock
from trimtab.errors import BadArgument, InUse
from trimtab.federation.storage.files import read_sealed, write_sealed
from trimtab.federation.storage.keys import SITE_DAYS, expiry_warning, fingerprint

FILE = "federation.json"
OPTIONAL = {"leaving": list, "former": dict, "removed": list, "until": dict, "requests": dict}
OPTIONAL |= {"readmit": list}
REQUEST_DAYS = 30  # A request that is older is refused, and its nonce need not be kept any longer.
_PATIENCE = 10.0  # seconds; a change takes less than one, so a longer wait means a stuck process


@dataclass(frozen=True)
class Roster:
    """The sites by name, in the order of the clients, with their public keys."""

    sites: Mapping[str, str] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()  # sites that leave before the next round
    former: Mapping[str, str] = field(default_factory=dict)  # refused keys, each with the reason
    removed: tuple[str, ...] = ()  # names of sites that left
    until: Mapping[str, str] = field(default_factory=dict)  # when each site's key expires
    requests: Mapping[str, str] = field(default_factory=dict)  # used nonces, when they were made
    readmit: tuple[str, ...] = ()  # sites that are asked again although updates were refused

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Roster":
        """Take the roster out of federation.json."""
        given = {name: content[name] for name in ("sites", *OPTIONAL) if name in content}
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else dict(value)
            for name, value in given.items()
        }
        return cls(**facts)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the sites' keys, by name."""
        return {name: fingerprint(key) for name, key in self.sites.items()}

    @property
    def remaining(self) -> list[str]:
        """The sites that are not to leave."""
        return [name for name in self.sites if name not in self.leaving]

    @property
    def valid(self) -> dict[str, str]:
        """The sites whose keys have not expired, with their public keys."""
        now = datetime.now(UTC)
        return {name: key for name, key in self.sites.items() if now < self._expires(name)}

    def expiring(self) -> list[str]:
        """Return a sentence for each key that has expired or does so within 30 days."""
        remedy = "let the site run `trimtab federate enroll DIR` with its option to rotate"
        return [
            said
            for name in self.until
            if (said := expiry_warning(f"the key of {name}", self._expires(name), remedy))
        ]

    def joining(self, members: Collection[str]) -> list[str]:
        """Return the sites that are to join those that take part."""
        return [name for name in self.remaining if name not in members]

    def left(self, members: Collection[str]) -> list[str]:
        """Return the sites that were to leave and do not take part any more."""
        return [name for name in self.leaving if name not in members]

    def check_new(self, name: str, readmit: bool = False) -> None:
        """Refuse a name that is taken, or that of a site that was removed."""
        if name in self.sites:
            raise ValueError(f"there is a site {name} already; give the new one another name.")
        if name in self.removed and not readmit:
            raise BadArgument(
                "readmit",
                "{_name} was removed from the federation; compare the fingerprint of its new key "
                "over the telephone, then pass {readmit}.",
                _name=name,
            )

    def check_key(self, public_key: str) -> None:
        """Refuse a key that is, or was, a site's: a key that comes back may have been stolen."""
        shown = fingerprint(public_key)
        for name, key in self.sites.items():
            if fingerprint(key) == shown:
                raise ValueError(f"the key {shown} is that of site {name}; make a new one.")
        if shown in self.former:
            raise ValueError(
                f"the key {shown} was admitted before ({self.former[shown]}); make a new one."
            )

    def _expires(self, name: str) -> datetime:
        # Keys that an older trimtab admitted have no date.
        return datetime.fromisoformat(self.until.get(name, "9999-12-31T00:00:00+00:00"))


class RosterFile:
    """The roster in an operator's folder; each change is one read and one write under a lock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE

    def read(self) -> Roster:
        """Return the roster as it is now."""
        return Roster.from_json(read_sealed(self.path))

    def create(self, about: Mapping[str, Any], sites: Mapping[str, str]) -> None:
        """Write federation.json for the first time, with its first sites."""
        until = dict.fromkeys(sites, _in_days(SITE_DAYS))
        with self._locked():
            write_sealed(self.path, {**about, "sites": dict(sites), "leaving": [], "until": until})

    def note(self, **facts: Any) -> None:
        """Change what federation.json says besides the sites."""
        with self._changing() as content:
            content.update(facts)

    def admit(
        self, name: str, public_key: str, nonce: str = "", made: str = "", readmit: bool = False
    ) -> None:
        """Admit one more site.

        name: the site's name.
        public_key: its public key.
        nonce: that of the request for it, which is used once; default none, without a request.
        made: when the request was made.
        readmit: whether a site of this name that was removed may come back; default no.
        """
        with self._changing() as content:
            roster = Roster.from_json(content)
            roster.check_new(name, readmit)
            self._take_key(content, roster, name, public_key, nonce, made)
            content["removed"] = [other for other in roster.removed if other != name]

    def replace_key(self, name: str, public_key: str, nonce: str = "", made: str = "") -> None:
        """Admit a site with another key from now on, and no longer with the one that it had."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            old = roster.fingerprints[name]
            self._take_key(content, roster, name, public_key, nonce, made)
            content["former"] = {**roster.former, old: f"{name} has another key now"}

    def remove_site(self, name: str) -> None:
        """Note that a site is to leave."""
        with self._changing() as content:
            roster = self._with(content, name)
            if not set(roster.remaining) - {name}:
                raise ValueError(f"{name!r} is the only site left; end the experiment instead.")
            content["leaving"] = list(dict.fromkeys((*roster.leaving, name)))

    def readmit(self, name: str) -> None:
        """Note that a site whose updates were refused is to be asked again."""
        with self._changing() as content:
            roster = self._with(content, name)
            content["readmit"] = list(dict.fromkeys((*roster.readmit, name)))

    def readmitted(self, name: str) -> None:
        """Note that a site is asked again."""
        with self._changing() as content:
            content["readmit"] = [other for other in content["readmit"] if other != name]

    def forget(self, name: str) -> None:
        """Delete a site that has left; its key is refused from now on."""
        with self._changing() as content:
            roster = Roster.from_json(content)
            content["leaving"] = [other for other in roster.leaving if other != name]
            if content["sites"].pop(name, None):
                why = f"{name} was removed"
                content["former"] = {**roster.former, roster.fingerprints[name]: why}
                content["removed"] = list(dict.fromkeys((*roster.removed, name)))
                content.get("until", {}).pop(name, None)

    @staticmethod
    def _with(content: Mapping[str, Any], name: str) -> Roster:
        """Return the roster; refuse the name of a site that is not in it."""
        roster = Roster.from_json(content)
        if name not in roster.sites:
            known = ", ".join(roster.sites)
            raise ValueError(f"there is no site {name!r}; the sites are {known}.")
        return roster

    @staticmethod
    def _take_key(
        content: dict[str, Any], roster: Roster, name: str, key: str, nonce: str, made: str
    ) -> None:
        if nonce in roster.requests:
            raise ValueError(f"the request of {name} was used before; let the site make another.")
        roster.check_key(key)
        oldest = (datetime.now(UTC) - timedelta(days=REQUEST_DAYS)).isoformat()
        kept = {used: at for used, at in roster.requests.items() if at >= oldest}
        content["requests"] = kept | ({nonce: made} if nonce else {})
        content["sites"][name] = key
        content["until"] = {**roster.until, name: _in_days(SITE_DAYS)}

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Yield the file's content to change; it is written if nothing is refused."""
        with self._locked():
            content = read_sealed(self.path)
            yield content
            write_sealed(self.path, content)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for the process that changes the file now."""
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


def _in_days(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
