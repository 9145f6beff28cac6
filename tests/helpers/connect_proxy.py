"""A small HTTP proxy on loopback that knows CONNECT, and a TCP relay with faults, for tests."""

import contextlib
import socket
import threading
import time


class Listener:
    """Serves each connection in a thread of its own, until closed."""

    def __init__(self, port=0):
        self.socket = socket.create_server(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        self.asked = []
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                link, _ = self.socket.accept()
                self._open.add(link)
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link):
        with contextlib.suppress(OSError), link:
            self.serve(link)
        self._open.discard(link)

    def drop(self):
        """Cut all that is open."""
        for link in list(self._open):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.drop()


class ConnectProxy(Listener):
    """Carries what CONNECT asks for; refuses all else."""

    def serve(self, link):
        head = b""
        while b"\r\n\r\n" not in head:
            head += link.recv(1)
        method, target, _ = head.split(b"\r\n")[0].split(b" ")
        self.asked.append((method.decode(), target.decode(), head))
        if method != b"CONNECT":
            link.sendall(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return
        host, _, port = target.decode().rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), 5) as there:
            link.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            carry(link, there)


class Relay(Listener):
    """Carries to a port, as its `fault` says: nothing, 'hole', 'slow' or 'reset'."""

    def __init__(self, target, port=0):
        self.target, self.fault = target, ""
        super().__init__(port)

    def serve(self, link):
        if self.fault == "reset":
            return
        with socket.create_connection(("127.0.0.1", self.target), 5) as there:
            self._open.add(there)
            carry(link, there, self)


def carry(one, other, relay=None):
    """Carry both ways until either side has ended."""
    back = threading.Thread(target=_pump, args=(other, one, relay), daemon=True)
    back.start()
    _pump(one, other, relay)
    back.join()


def _pump(source, target, relay):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            while relay is not None and relay.fault == "hole":
                time.sleep(0.1)
            if relay is not None and relay.fault == "slow":
                time.sleep(0.3)
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
