"""``clonos-socket``: lines of text from a server, as Spark's own ``socket`` source, but kept."""

from __future__ import annotations

from typing import Any

from clonos._config import one_of, parse_size
from clonos._sources.base import TIMESTAMP, ReceiverLog, ReplayableSource, SourceLog
from clonos._sources.options import address, port_of, refused, seconds, truth
from clonos.errors import ConfigError

LINE_MAX = 256 << 20


class SocketSource(ReplayableSource):
    """Lines of text over TCP: ``spark.readStream.format("clonos-socket")``.

    Connects to ``host`` and ``port``, and again, with growing pauses, whenever the connection ends.
    The schema is ``value string`` and, with ``includeTimestamp``, ``timestamp timestamp``. Besides
    the options of `ReplayableSource`:

    ====================== ========= ==============================================================
    option                 default   meaning
    ====================== ========= ==============================================================
    ``host``, ``port``               where the lines come from
    ``acknowledge``        false     tell the sender, in lines of their own, how many of its lines
                                     are safe: on connecting, and whenever there are more. A sender
                                     that goes on behind that number loses and doubles nothing
    ``malformed``          replace   bytes that are no UTF-8: ``replace`` them by U+FFFD, ``drop``
                                     the line, or keep it ``aside`` in the log's ``aside.jsonl``
    ``maxLineBytes``       1MiB      longer lines are dropped (or kept aside)
    ``maxBackoffSeconds``  10        longest pause before connecting again
    ====================== ========= ==============================================================

    What is dropped is counted: ``clonos inspect`` on the folder of the log shows it.
    """

    own_options = (
        "host",
        "port",
        "acknowledge",
        "malformed",
        "maxLineBytes",
        "maxBackoffSeconds",
    )

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "clonos-socket"

    def schema(self) -> str:
        """Return the columns."""
        options = self.log_options()
        # Refused here, where the user sees it, and not in the receiver's process.
        self._settings()
        return f"value string, {TIMESTAMP} timestamp" if options.timestamps else "value string"

    def log_name(self) -> str:
        """Return a name made of host and port."""
        host, port = self._addr()
        return f"socket-{host}-{port}"

    def _addr(self) -> tuple[str, int]:
        options = self.given_options()
        host = options.get("host")
        if not host:
            raise ConfigError("clonos-socket needs the options host and port", "CONFIG")
        return host, port_of(options, self.name())

    def receive(self, log: SourceLog) -> None:
        """Receive lines; all of it is in the core."""
        if not isinstance(log, ReceiverLog):
            raise TypeError("clonos-socket fills the core's own log")
        log.receive_socket(**self._settings())

    def _settings(self) -> dict[str, Any]:
        """Arguments of the core's receiver."""
        options = self.given_options()
        host, port = self._addr()
        choices = ("replace", "drop", "aside")
        malformed = one_of("malformed", options.get("malformed", "replace"), choices)
        line_max = parse_size("maxLineBytes", options.get("maxLineBytes", "1MiB"))
        if line_max > LINE_MAX:
            raise refused("maxLineBytes", str(line_max), "at most 256MiB")
        return {
            "addr": address(host, port),
            "line_max": line_max,
            "repair": malformed == "replace",
            "keep_malformed": malformed == "aside",
            "acknowledge": truth(options, "acknowledge", default=False),
            "back_off_max": seconds(options, "maxBackoffSeconds", 10.0),
        }


__all__ = ["SocketSource"]
