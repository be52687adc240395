"""What is the same of epochs wherever the program runs: beside the driver, or as a client."""

from __future__ import annotations

from clonos.errors import ConfigError

BATCH_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_BYTES = "4MB"
EPOCH_NAME_MAX = 200
# Of the number of a run: the core takes 64.
STAMP_BITS = 63


def check_epoch_name(name: object) -> None:
    """Raise `ConfigError` unless `name` can be that of an epoch."""
    if not isinstance(name, str) or not 0 < len(name) <= EPOCH_NAME_MAX:
        message = f"epoch name {name!r} must be a str of 1 to {EPOCH_NAME_MAX} characters"
        raise ConfigError(message, "CONFIG")
