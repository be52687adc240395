"""``python -m clonos``."""

from clonos.cli import main

main()
