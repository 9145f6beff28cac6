"""`/healthz` and `/metrics` on loopback, for monitoring: read only, by `prometheus_client`.

The numbers are about rounds, sites, seconds, bytes and the metrics of the run; never about samples.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trimtab.errors import BadArgument
from trimtab.federation.processes.observed import Sample

_PREFIX = "trimtab_"


class Samples(Collector):
    """Reads the samples again for each scrape; those of one name form one family."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self.read = read

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return the families of the samples whose value is known."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in self.read():
            if sample.value is None:
                continue
            if sample.name not in families:
                kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
                names = list(sample.labels)
                families[sample.name] = kind(_PREFIX + sample.name, sample.help, labels=names)
            families[sample.name].add_metric(list(sample.labels.values()), sample.value)
        yield from families.values()


class MetricsPage:
    """A listener on loopback, in its own thread; port 0 takes a free one."""

    def __init__(
        self,
        port: int,
        samples: Callable[[], Iterable[Sample]],
        troubles: Callable[[], list[str]],
    ) -> None:
        self.troubles = troubles
        registry = CollectorRegistry()
        registry.register(Samples(samples))
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
            troubles = "".join(f"{trouble}\n" for trouble in self.troubles())
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
