"""`/healthz` and `/metrics` on loopback, and when each site was last heard of; read only.

The numbers are about rounds, sites, seconds, bytes and the metrics of the run; never about samples.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab._files import write_json
from trimtab.errors import BadArgument
from trimtab.federation.events import Event, RoundCommitted
from trimtab.federation.processes.operator import OperatorProcess
from trimtab.federation.processes.site import AnsweredRequest, SiteProcess
from trimtab.federation.setup.status import CONTACTS
from trimtab.federation.storage.keys import expires

_WRITE = 5.0  # Contacts are written down every 5 seconds.

Family = CounterMetricFamily | GaugeMetricFamily


def family(
    name: str,
    help: str,
    value: float | None = None,
    *,
    by: Mapping[Any, float] | None = None,
    labels: tuple[str, ...] = (),
    counter: bool = False,
) -> Family:
    """Return the numbers of one name; what is None is not known yet, and not shown.

    value: the number; default none, for names with labels.
    by: the numbers by the values of `labels`.
    counter: whether it only grows; default no.
    """
    kind = CounterMetricFamily if counter else GaugeMetricFamily
    made = kind(f"trimtab_{name}", help, labels=labels)
    for places, number in ({(): value} if by is None else by).items():
        if number is not None:
            made.add_metric(places, number)
    return made


class OperatorView(Collector):
    """What `/metrics` and `status` tell of a server; `note` each event."""

    def __init__(self, process: OperatorProcess, R: int) -> None:
        self.process, self.R = process, R
        self.last: RoundCommitted | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_contacts, name="contacts", daemon=True)
        self._thread.start()

    def note(self, event: Event) -> None:
        """Take in what happened."""
        if isinstance(event, RoundCommitted):
            self.last = event

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def troubles(self) -> list[str]:
        """Return what is wrong now."""
        children = (self.process.superlink, self.process.rounds)
        return [f"{child.name} is not running" for child in children if not child.alive]

    def collect(self) -> Iterator[Family]:
        """Go through what is known now."""
        event, now, superlink = self.last, time.time(), self.process.superlink
        yield family("rounds_wanted", "Rounds that the run is to have.", self.R)
        if event is not None:
            yield family("round", "The last committed round.", event.r)
            yield family("round_seconds", "Seconds that it took.", event.seconds)
            yield family("round_sites", "Sites that took part in it.", len(event.cohort))
            yield family("round_absent", "Sites that sat it out.", len(event.absent))
            yield family("drift", "Mean norm of the sites' moves in it.", event.drift)
            of = {(name,): v for name, v in event.metrics.items() if v is not None}
            said = "Mean over sites, of x before it."
            yield family("metric", said, by=of, labels=("name",))
        ways = {"up": superlink.told.up, "down": superlink.told.down}
        counts = {(site, way): n for way, sites in ways.items() for site, n in sites.items()}
        yield family("bytes", "Bytes at the wire.", by=counts, labels=("site", "way"), counter=True)
        ago = {(site,): now - at for site, at in superlink.seen.items()}
        said = "Seconds since a site's request."
        yield family("contact_seconds", said, by=ago, labels=("site",))
        until = expires(self.process.federation.keys / "server.crt").timestamp()
        yield family("certificate_seconds", "Seconds until the certificate expires.", until - now)

    def _write_contacts(self) -> None:
        while not self._stop.wait(_WRITE):
            self.process.superlink.traffic()  # The SuperLink tells both together.
            stamps = {site: _stamp(at) for site, at in self.process.superlink.seen.items()}
            with suppress(OSError):  # a full disk is said by those who write what counts
                write_json(self.process.federation.folder / CONTACTS, stamps)


class SiteView(Collector):
    """What `/metrics` tells of a site; `note` each request that was answered."""

    def __init__(self, process: SiteProcess) -> None:
        self.process = process
        self.answered: Counter[tuple[str, ...]] = Counter()  # by kind and status
        self.last: float | None = None  # when a request was answered, in seconds since 1970
        self.round: int | None = None
        self.seconds = 0.0

    def note(self, answered: AnsweredRequest) -> None:
        """Take in an answer."""
        self.answered[answered.kind, answered.status] += 1
        self.last, self.seconds = time.time(), self.seconds + answered.seconds
        self.round = answered.round or self.round

    def troubles(self) -> list[str]:
        """Return what is wrong now."""
        troubles = [] if self.process.line.connected else ["the server is not connected"]
        return troubles + ([] if self.process.worker.child.alive else ["the worker is not running"])

    def collect(self) -> Iterator[Family]:
        """Go through what is known now."""
        yield family(
            "requests",
            "Requests that were answered.",
            by=dict(self.answered),
            labels=("kind", "status"),
            counter=True,
        )
        yield family("work_seconds", "Seconds spent on them.", self.seconds, counter=True)
        starts = {("worker",): self.process.worker.child.starts}
        yield family("starts", "Starts of it.", by=starts, labels=("process",), counter=True)
        connected = self.process.line.activations
        yield family("connections", "Connections to the server.", connected, counter=True)
        yield family("round", "The last round that was worked on.", self.round)
        ago = None if self.last is None else time.time() - self.last
        yield family("request_seconds", "Seconds since the last answer.", ago)


class MetricsPage:
    """A listener on loopback, in its own thread; port 0 takes a free one."""

    def __init__(self, port: int, view: OperatorView | SiteView) -> None:
        self.view = view
        registry = CollectorRegistry()
        registry.register(view)
        self._metrics = make_wsgi_app(registry)
        try:
            self._listener = _Listener(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise BadArgument(
                "metrics_port",
                "port {port} of 127.0.0.1 cannot be opened ({why}); pass another {metrics_port}.",
                port=port,
                why=error.strerror or error,
            ) from None
        self._listener.set_app(self._answer)
        self.port = int(self._listener.server_port)
        threading.Thread(target=self._listener.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()

    def _answer(self, request: dict[str, Any], start: Any) -> Iterable[bytes]:
        if request["PATH_INFO"] == "/metrics":
            metrics: Iterable[bytes] = self._metrics(request, start)
            return metrics
        status, text = "404 Not Found", "there are /healthz and /metrics\n"
        if request["PATH_INFO"] == "/healthz":
            troubles = "".join(f"{trouble}\n" for trouble in self.view.troubles())
            status = "503 Service Unavailable" if troubles else "200 OK"
            text = troubles or "ok\n"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]


class _Listener(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the client has closed the connection."""


class _Handler(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
