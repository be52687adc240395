"""How one causal function is recorded: its options, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from clonos._config import Flush, OnError, Per, Record, choice
from clonos._operators.declaration import ARROW, ASYNC, PANDAS, ROW
from clonos._uses import check_uid
from clonos.errors import ConfigError

if TYPE_CHECKING:
    import tenacity

CONCURRENCY_MAX = 10_000
# Kinds that can have one answer per distinct argument.
VALUE_KINDS = (ROW, ASYNC, PANDAS, ARROW)


class CausalOptions(TypedDict, total=False):
    """Keywords of `causal`."""

    uid: str | None
    record: Record
    per: Per | None
    concurrency: int
    flush: Flush
    allow_code_change: bool
    code_version: str | None
    retries: int | tenacity.BaseRetrying
    on_error: OnError
    rate_limit: str | None
    timeout: float | None
    setup: Callable[[], Any] | None


@dataclass(frozen=True)
class Options:
    """How one causal function is recorded; see `causal`."""

    uid: str | None
    record: str
    per: str | None
    concurrency: int
    flush: str
    allow_code_change: bool
    calls: dict[str, Any]
    code_version: str | None = None

    def check(self, kind: str) -> None:
        """Refuse combinations that cannot be kept.

        Raises
        ------
        ConfigError
            Names the option to change.
        """
        check_uid(self.uid)
        choice("record", self.record, Record)
        choice("flush", self.flush, Flush)
        if self.per is not None:
            choice("per", self.per, Per)
        if self.per == "value":
            self._check_value(kind)
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            refused(f"concurrency={self.concurrency} must be between 1 and {CONCURRENCY_MAX}")
        if self.concurrency > 1 and kind != ASYNC:
            refused("concurrency= needs an `async def` function")
        if self.record == "services" and self.concurrency > 1:
            refused("record='services' needs concurrency=1: services are replayed in one order")
        if self.flush == "call" and self.record == "result" and kind.endswith("_iter"):
            refused("flush='call' cannot be kept by an iterator UDF, which sees whole batches")

    def _check_value(self, kind: str) -> None:
        if kind not in VALUE_KINDS:
            refused(
                f"per='value' cannot be kept by functions of kind {kind!r}: which row an answer is "
                "for must be known; make it a function of one row, or a scalar pandas or Arrow one"
            )
        if self.record == "services":
            refused("per='value' needs record='result': an answer is recorded as a whole")


def check_seen(uid: str, unseen: str | None) -> None:
    """Refuse a function that would share its answers with another that looks the same."""
    if unseen is not None:
        refused(
            f"{uid} holds a {unseen}, which cannot be told from another one, and with "
            "per='value' functions that are equal share their answers. A client, a connection or "
            "a lock cannot be sent to the workers either: make it there, with setup=make_client. "
            "For all else, name what the function is with code_version=, or use per='row'"
        )


def refused(message: str) -> NoReturn:
    """Raise `ConfigError`."""
    raise ConfigError(message, "CONFIG")
