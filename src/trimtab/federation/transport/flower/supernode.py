"""Flower's SuperNode, started so that it tells how it is, and ends when it has given up.

As it comes, it goes on living when its client has given up, looks for requests every three seconds,
and takes its way out from variables that are meant for browsers. What is replaced here are names of
two of its modules, so the version is checked first. By `report_status` it reports that the server
has answered, and how far the clocks are apart.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from trimtab._processes import report_status
from trimtab.federation.transport.flower.patience import check_version, patient
from trimtab.federation.transport.flower.straight import Straight

PROXY = "TRIMTAB_PROXY"  # an address may hold a password, so it does not go into the arguments
SOONEST, LATEST = 0.2, 2.0  # a request is looked for every 0.2 to 2 seconds
_NO_REQUEST = 3.0  # Flower sleeps for this many seconds if there is none
_PATIENT = 20.0  # after t seconds without a request, the next look is t / 20 seconds later
GAVE_UP = 70  # the code with which it ends when its client has given up


class Client(Straight, FleetHttpClient):
    """Flower's client with a way out that was chosen, and signs of life."""

    def proxy(self) -> str | None:
        """Return the proxy of `trimtab federate site --proxy`."""
        return os.environ.get(PROXY) or None

    def hooks(self) -> list[Callable[[httpx.Response], None]]:
        """Return what shows that the server has answered."""
        return [_answered]


def _answered(response: httpx.Response) -> None:
    """Show that the server has answered, and what it says of the time."""
    facts: dict[str, Any] = {"status": response.status_code}
    if "date" in response.headers:
        theirs = parsedate_to_datetime(response.headers["date"]).timestamp()
        facts["ahead"] = time.time() - theirs  # a date has whole seconds
    report_status(**facts)


class _Pace:
    """How often a SuperNode looks: the less, the longer there has been no request."""

    def __init__(self) -> None:
        self._since = time.monotonic()  # the last request

    def sleep(self, seconds: float) -> None:
        """Sleep in place of Flower's 3 seconds without a request, 0.5 without a reply."""
        now = time.monotonic()
        if seconds < _NO_REQUEST:
            self._since = now
            time.sleep(min(seconds, SOONEST))
        else:
            time.sleep(min(seconds, LATEST, max(SOONEST, (now - self._since) / _PATIENT)))


def _end(error: threading.ExceptHookArgs) -> None:
    """End with any of the threads: without its heartbeat a SuperNode is not connected."""
    if error.exc_type is SystemExit:
        return
    traceback.print_exception(error.exc_type, error.exc_value, error.exc_traceback)
    _leave(GAVE_UP)


def _leave(code: int) -> None:
    """End now, although Flower's server has a thread that goes on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Be a SuperNode until it ends or gives up."""
    check_version()
    vars(start_client_internal)["time"] = _Pace()
    vars(fleet_http_connection)["make_simple_http_retry_invoker"] = patient
    vars(fleet_http_connection)["FleetHttpClient"] = Client
    threading.excepthook = _end
    try:
        flower_supernode()
    except SystemExit as error:
        _leave(error.code if isinstance(error.code, int) else GAVE_UP)
    except BaseException:
        traceback.print_exc()
    print("the SuperNode has given up.", file=sys.stderr)
    _leave(GAVE_UP)
