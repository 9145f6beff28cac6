"""What an operator's process and a site's show of themselves while they run."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trimtab._files import write_json
from trimtab.federation.events import Event, RoundCommitted, Traffic
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.site import AnsweredRequest, SiteProcess
from trimtab.federation.setup.status import CONTACTS
from trimtab.federation.storage.keys import expires

_LOOK = 1.0  # a contact is noticed <= this many seconds later
_WRITE = 5.0  # it is written down <= this many seconds later


@dataclass(frozen=True)
class Sample:
    """One number of `/metrics`: its name without `trimtab_`, and its labels."""

    name: str
    help: str
    value: float | None  # None: it is not known yet, and not shown
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["gauge", "counter"] = "gauge"


class Contacts:
    """When each site was last heard of, by the bytes of its requests; `status` reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: dict[str, float] = {}  # seconds since 1970, by site
        self._bytes: dict[str, int] = {}
        self._written = 0.0

    def look(self, traffic: Traffic, now: float) -> None:
        """Note whose bytes have grown since the last look; write it down now and then."""
        for site, count in traffic.up.items():
            if count != self._bytes.get(site, 0):
                self.last[site], self._bytes[site] = now, count
        if now - self._written >= _WRITE:
            self._written = now
            stamps = {site: _stamp(at) for site, at in self.last.items()}
            with suppress(OSError):  # a full disk is said by those who write what counts
                write_json(self.path, stamps)


class OperatorView:
    """What `/metrics` and `status` tell of a server; `note` each event."""

    def __init__(self, process: OperatorProcess, R: int) -> None:
        self.process, self.R = process, R
        self.contacts = Contacts(process.federation.folder / CONTACTS)
        self.last: RoundCommitted | None = None
        self.reached = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="contacts", daemon=True)
        self._thread.start()

    def note(self, event: Event) -> None:
        """Take in what happened."""
        if isinstance(event, RoundCommitted):
            self.last = event

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def troubles(self) -> list[str]:
        """Return what is wrong now."""
        process = self.process
        children = (process.superlink, process.rounds)
        return [f"{child.name} is not running" for child in children if not child.alive]

    def samples(self) -> Iterator[Sample]:
        """Go through what is known now."""
        event, now = self.last, time.time()
        yield Sample("rounds_wanted", "Rounds that the run is to have.", self.R)
        if event is not None:
            yield Sample("round", "The last committed round.", event.r)
            yield Sample("round_seconds", "Seconds that it took.", event.seconds)
            yield Sample("round_sites", "Sites that took part in it.", len(event.cohort))
            yield Sample("round_absent", "Sites that sat it out.", len(event.absent))
            yield Sample("drift", "Mean norm of the sites' moves in it.", event.drift)
            for name, value in event.metrics.items():
                yield Sample("metric", "Mean over sites, of x before it.", value, {"name": name})
        traffic = self.process.superlink.traffic_so_far()
        for way, told in (("up", traffic.up), ("down", traffic.down)):
            for site, count in told.items():
                labels = {"site": site, "way": way}
                yield Sample("bytes_total", "Bytes at the wire.", count, labels, "counter")
        for site, at in list(self.contacts.last.items()):
            labels = {"site": site}
            yield Sample("contact_seconds", "Seconds since a site's request.", now - at, labels)
        until = expires(self.process.federation.keys / "server.crt").timestamp()
        yield Sample("certificate_seconds", "Seconds until the certificate expires.", until - now)

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK):
            self.contacts.look(self.process.superlink.traffic(), time.time())


@dataclass
class SiteView:
    """What `/metrics` tells of a site; `note` each request that was answered."""

    process: SiteProcess
    last: float | None = None  # when a request was answered, in seconds since 1970
    round: int | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.answered: Counter[tuple[str, str]] = Counter()

    def note(self, answered: AnsweredRequest) -> None:
        """Take in an answer."""
        self.answered[answered.kind, answered.status] += 1
        self.last, self.seconds = time.time(), self.seconds + answered.seconds
        self.round = answered.round or self.round

    def troubles(self) -> list[str]:
        """Return what is wrong now."""
        troubles = [] if self.process.line.connected else ["the server is not connected"]
        return troubles + ([] if self.process.worker.child.alive else ["the worker is not running"])

    def samples(self) -> Iterator[Sample]:
        """Go through what is known now."""
        for (kind, status), count in list(self.answered.items()):
            labels = {"kind": kind, "status": status}
            yield Sample("requests_total", "Requests that were answered.", count, labels, "counter")
        yield Sample("work_seconds_total", "Seconds spent on them.", self.seconds, {}, "counter")
        yield Sample("round", "The last round that was worked on.", self.round)
        ago = None if self.last is None else time.time() - self.last
        yield Sample("request_seconds", "Seconds since the last answer.", ago)
        starts = self.process.worker.child.starts
        yield Sample(
            "starts_total", "Starts of the worker.", starts, {"process": "worker"}, "counter"
        )
        connected = self.process.line.activations
        yield Sample("connections_total", "Connections to the server.", connected, {}, "counter")


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
