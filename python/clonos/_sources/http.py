"""``clonos-http``: an endpoint that takes posted events, and answers when they are safe."""

from __future__ import annotations

from typing import Any

from clonos._config import one_of, parse_size
from clonos._sources.base import TIMESTAMP, ReceiverLog, ReplayableSource, SourceLog
from clonos._sources.options import address, port_of, refused

BODY_MAX = 256 << 20


class HttpSource(ReplayableSource):
    """Events posted over HTTP: ``spark.readStream.format("clonos-http")``.

    A ``POST`` with an event as its body, or with one in each line (``Content-Type:
    application/x-ndjson``), is answered with status 200 and ``{"events": n, "position": m}`` when
    the events are safe. The schema is ``value string`` and, with ``includeTimestamp``, ``timestamp
    timestamp``. Other answers: 400 (empty, or no UTF-8), 401, 404, 405, 408, 413, and 503 with
    ``Retry-After`` while ``disk`` is used up. A client that got no answer must post again, so put
    a number of your own into events that must not count twice.

    Besides the options of `ReplayableSource`:

    ================== =============== ===========================================================
    option             default         meaning
    ================== =============== ===========================================================
    ``port``                           where to listen; the receiver keeps it over restarts
    ``host``           127.0.0.1       interface to listen on
    ``path``           /               path that takes events
    ``token``                          if set, clients send ``Authorization: Bearer <token>``
    ``maxBodyBytes``   1MiB            longer bodies are refused
    ``malformed``      drop            bytes that are no UTF-8: refuse the request (``drop``), also
                                       keep it ``aside``, or ``replace`` them by U+FFFD
    ================== =============== ===========================================================
    """

    own_options = ("port", "host", "path", "token", "maxBodyBytes", "malformed")

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "clonos-http"

    def schema(self) -> str:
        """Return the columns."""
        options = self.log_options()
        # Refused here, where the user sees it, and not in the receiver's process.
        self._settings()
        return f"value string, {TIMESTAMP} timestamp" if options.timestamps else "value string"

    def log_name(self) -> str:
        """Return a name made of the port."""
        return f"http-{self._port()}"

    def _port(self) -> int:
        return port_of(self.given_options(), self.name())

    def receive(self, log: SourceLog) -> None:
        """Take requests; all of it is in the core."""
        if not isinstance(log, ReceiverLog):
            raise TypeError("clonos-http fills the core's own log")
        log.receive_http(**self._settings())

    def _settings(self) -> dict[str, Any]:
        """Arguments of the core's receiver."""
        options = self.given_options()
        host, path = options.get("host", "127.0.0.1"), options.get("path", "/")
        if not path.startswith("/"):
            raise refused("path", path, "a path that begins with '/'")
        body_max = parse_size("maxBodyBytes", options.get("maxBodyBytes", "1MiB"))
        if body_max > BODY_MAX:
            raise refused("maxBodyBytes", str(body_max), "at most 256MiB")
        choices = ("drop", "aside", "replace")
        malformed = one_of("malformed", options.get("malformed", "drop"), choices)
        return {
            "addr": address(host, self._port()),
            "path": path,
            "body_max": body_max,
            "repair": malformed == "replace",
            "keep_malformed": malformed == "aside",
            "token": options.get("token"),
        }


__all__ = ["HttpSource"]
