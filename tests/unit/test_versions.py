"""Which versions of Spark a session is begun on."""

from __future__ import annotations

import logging

import pytest

from clonos import errors
from clonos._versions import ANY_SPARK, check_spark


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.1", "4.3.0.dev1"])
def test_what_the_tests_ran_with_is_taken(version: str) -> None:
    check_spark(version)


def test_others_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version in ("3.5.8", "4.0.1", "4.4.0", "5.0.0"):
        with pytest.raises(errors.ConfigError, match=r"install pyspark>=4\.1,<4\.4"):
            check_spark(version)
    with pytest.raises(errors.ConfigError, match=f"{ANY_SPARK}=1 to try it"):
        check_spark("4.4.0")
    monkeypatch.setenv(ANY_SPARK, "1")
    with caplog.at_level(logging.WARNING, "clonos"):
        check_spark("4.4.0")
    assert "4.4.0 is tried" in caplog.text
    with pytest.raises(errors.ConfigError, match=r"knows Spark 4\.1 to 4\.3"):
        check_spark("4.0.1")
