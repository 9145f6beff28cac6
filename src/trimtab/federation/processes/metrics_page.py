"""`/healthz` and `/metrics` on loopback, for those who watch over machines: read only.

What is told is of rounds, sites, seconds, bytes, and the metrics of the run; never of samples. The
form is the text exposition format of Prometheus, which is four rules: too few for a dependency.
"""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from trimtab.errors import BadArgument

_PREFIX = "trimtab_"


@dataclass(frozen=True)
class Sample:
    """One number: `name{labels} value`."""

    name: str
    help: str
    value: float | None  # None: it is not known yet, and not shown
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["gauge", "counter"] = "gauge"


def exposition(samples: Iterable[Sample]) -> str:
    r"""Return samples as Prometheus reads them; those of one name stand together.

    >>> print(exposition([Sample("round", "The last round.", 3, {"run": 'a"b'})]), end="")
    # HELP trimtab_round The last round.
    # TYPE trimtab_round gauge
    trimtab_round{run="a\"b"} 3
    """
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.value is not None:
            grouped.setdefault(sample.name, []).append(sample)
    lines = []
    for name, group in grouped.items():
        lines.append(f"# HELP {_PREFIX}{name} {_escaped(group[0].help)}")
        lines.append(f"# TYPE {_PREFIX}{name} {group[0].kind}")
        lines += [f"{_PREFIX}{name}{_labels(s.labels)} {_number(s.value)}" for s in group]
    return "".join(f"{line}\n" for line in lines)


class MetricsPage:
    """A listener on loopback, in a thread of its own; port 0 takes a free one."""

    def __init__(
        self,
        port: int,
        samples: Callable[[], Iterable[Sample]],
        troubles: Callable[[], list[str]],
    ) -> None:
        self.samples, self.troubles = samples, troubles
        try:
            self._listener = _Listener(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise BadArgument(
                "metrics_port",
                "port {port} of 127.0.0.1 cannot be opened ({why}); pass another {metrics_port}.",
                port=port,
                why=error.strerror or error,
            ) from None
        self._listener.page = self
        self.port = int(self._listener.server_address[1])
        self._thread = threading.Thread(
            target=self._listener.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown()
        self._listener.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    page: MetricsPage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who asked has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listener  # BaseHTTPRequestHandler gives it this name
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        page, path = self.server.page, self.path.split("?")[0]
        if path == "/metrics":
            self._send(200, exposition(page.samples()), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/healthz":
            troubles = page.troubles()
            self._send(503 if troubles else 200, "".join(f"{t}\n" for t in troubles) or "ok\n")
        else:
            self._send(404, "there are /healthz and /metrics\n")

    def _send(self, status: int, text: str, form: str = "text/plain; charset=utf-8") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("content-type", form)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _labels(labels: Mapping[str, str]) -> str:
    said = [f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items()]
    return f"{{{','.join(said)}}}" if said else ""


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float | None) -> str:
    assert value is not None
    if math.isnan(value):
        return "NaN"
    return f"{value:.17g}" if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
