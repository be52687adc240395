"""The ``clonos`` command; it needs the extra ``clonos[cli]``, which workers do without."""

from __future__ import annotations

import sys

# What only the command needs.
PACKAGES = {"rich", "typer"}


def main() -> None:
    """Run the ``clonos`` command; without its packages, say what to install."""
    try:
        # Typer asks for rich only when it prints.
        import rich  # noqa: F401

        from clonos.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        sys.exit(f"the clonos command needs {error.name}: pip install 'clonos[cli]'")
    app()
