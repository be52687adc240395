"""The figures of a session for Prometheus, served as text on an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clonos._config import PORT_MAX
from clonos.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric

    from clonos._stats import OperatorStats, Stats


def parse_address(value: str) -> tuple[str, int]:
    """Host and port of ``"127.0.0.1:9095"`` or ``"[::1]:9095"``.

    Raises
    ------
    ConfigError
        If the value is no address.
    """
    host, colon, port = str(value).rpartition(":")
    if colon and host and port.isdecimal() and int(port) <= PORT_MAX:
        return host.removeprefix("[").removesuffix("]"), int(port)
    message = f"metrics={value!r} is no address: write host:port, such as '127.0.0.1:9095'"
    raise ConfigError(message, "CONFIG")


def serve(address: str, stats: Callable[[], Stats]) -> Callable[[], None]:
    """Serve what `stats` returns, each time it is asked for; return what stops that.

    Parameters
    ----------
    address : str
        Where: host and port.
    stats : callable
        `Session.stats`.

    Raises
    ------
    ConfigError
        If it is no address, it is taken, or the package for it is missing.
    """
    host, port = parse_address(address)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.registry import Collector
    except ImportError:
        message = "metrics= needs the package prometheus-client: pip install 'clonos[metrics]'"
        raise ConfigError(message, "CONFIG") from None

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            return _metrics(stats())

    # A registry of its own: the user's program may serve one, too.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"metrics={address!r}: {error}", "CONFIG") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _metrics(stats: Stats) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def by_operator(
        name: str, what: str, value: Callable[[OperatorStats], Any], kind: Any = CounterMetricFamily
    ) -> Metric:
        family: Any = kind(f"clonos_{name}", what, labels=["operator"])
        for one in stats.operators:
            family.add_metric([one.operator], value(one))
        return family  # type: ignore[no-any-return]

    yield by_operator("rows_replayed", "Rows answered from a log", lambda one: one.replayed)
    yield by_operator("rows_live", "Rows run live", lambda one: one.live)
    yield by_operator("calls", "Calls made", lambda one: one.calls)
    yield by_operator("calls_saved", "Calls not made again", lambda one: one.saved)
    yield by_operator("logged_bytes", "Bytes logged", lambda one: one.bytes)
    yield by_operator("lost_logs", "Logs found lost", lambda one: one.lost)
    yield by_operator("call_seconds", "Time in calls", lambda one: one.call_ns / 1e9)
    yield by_operator(
        "saved_seconds",
        "Work not done again, at the mean of the calls made",
        lambda one: one.saved_seconds,
        GaugeMetricFamily,
    )
    for name, what, number in (
        ("agents", "Agents that answer", sum(agent.alive for agent in stats.agents)),
        ("open_logs", "Logs of epochs not committed", len(stats.tasks)),
        ("memory_bytes", "Logs in memory", sum(agent.memory_bytes for agent in stats.agents)),
        ("spilled_bytes", "Logs on disk", sum(agent.spilled_bytes for agent in stats.agents)),
    ):
        yield GaugeMetricFamily(f"clonos_{name}", what, value=number)
    yield CounterMetricFamily("clonos_commits", "Epochs committed", value=stats.totals.commits)
