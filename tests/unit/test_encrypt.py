"""What is encrypted: as Spark does, or as `attach` is told."""

from __future__ import annotations

from typing import Any

import pytest

from clonos._config import DISK_ENCRYPTED, NETWORK_ENCRYPTED, parse_encrypt
from clonos.errors import ConfigError


@pytest.mark.parametrize("network", [None, *NETWORK_ENCRYPTED])
@pytest.mark.parametrize("disk", [None, *DISK_ENCRYPTED])
def test_each_is_encrypted_as_sparks_own(network: str | None, disk: str | None) -> None:
    settings = {name: "TRUE" for name in (network, disk) if name is not None}
    settings.setdefault("spark.ssl.enabled", "false")
    chosen = parse_encrypt(None, settings)
    assert chosen == {"encrypt": network is not None, "encrypt_spill": disk is not None}


@pytest.mark.parametrize("told", [True, False])
def test_what_attach_is_told_goes_before(told: bool) -> None:
    for value in ("true", "false"):
        settings = dict.fromkeys((*NETWORK_ENCRYPTED, *DISK_ENCRYPTED), value)
        assert parse_encrypt(told, settings) == {"encrypt": told, "encrypt_spill": told}


@pytest.mark.parametrize("wrong", ["auto", "true", 1, 0, "no"])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="encrypt="):
        parse_encrypt(wrong, {})
