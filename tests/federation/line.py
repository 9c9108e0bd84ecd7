"""A line between sites and their server that can be cut: what is sent meanwhile is held, as a network does, or lost."""

import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class Line:
    """Forwards connections to a port of this machine, while it is whole.

    Attributes:
        port: where it leads.
        rate: bytes per second in each direction; 0: without a limit.
    """

    port: int
    rate: int = 0
    whole: threading.Event = field(default_factory=threading.Event)
    _pairs: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.entry: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nothing passes any more, and neither end learns why."""
        self.whole.clear()

    def mend(self) -> None:
        self.whole.set()

    def drop(self) -> None:
        """End all connections."""
        pairs, self._pairs = self._pairs, []
        for each in pairs:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        self.drop()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inner, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(inner,), daemon=True).start()

    def _join(self, inner: socket.socket) -> None:
        self.whole.wait()
        with inner, suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as outer:
            self._pairs += [inner, outer]
            for each in (inner, outer):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or small messages wait for each other
            with selectors.DefaultSelector() as ready:
                ready.register(inner, selectors.EVENT_READ, outer)
                ready.register(outer, selectors.EVENT_READ, inner)
                while True:
                    for key, _ in ready.select():
                        self._forward(key.fileobj, key.data)  # type: ignore[arg-type]

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        data = source.recv(max(1, self.rate // 20) if self.rate else 1 << 18)
        if not data:
            raise ConnectionError("ended")
        self.whole.wait()
        sink.sendall(data)
        if self.rate:
            threading.Event().wait(len(data) / self.rate)
