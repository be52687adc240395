"""Put faults back that once were in the code, one at a time, and see that a test notices each.

`make test-mutants`; not part of `make test`, as each fault in the core is compiled.
``ARGS="7 12"`` takes those with these numbers alone. `faults.toml` says what each was, the smallest
edit that brings it back, and the test that fails then. `tests/unit/test_mutants.py` sees that they
still fit the code.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
# Longer than any of the tests takes, with what it compiles.
PATIENCE_SECONDS = 900.0
_SHOWN_LINES = 30


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `find`, which stands once in `file`, is replaced."""

    number: int
    name: str
    file: str
    find: str
    replace: str
    noticed_by: str

    def put_back(self, code: str) -> str:
        """Return the file's text with the fault in it."""
        if code.count(self.find) != 1:
            raise ValueError(f"what {self.name!r} replaces stands {code.count(self.find)} times")
        return code.replace(self.find, self.replace)


def faults() -> list[Fault]:
    """All that are known."""
    return [Fault(**fault) for fault in tomllib.loads(FAULTS.read_text())["fault"]]


class Tree:
    """A copy of the project to break, which keeps what it compiles."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "tree"
        self._environment = os.environ | {
            "CARGO_TARGET_DIR": str(folder / "build"),
            "CARGO_INCREMENTAL": "1",
            "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
            "PYTHONPATH": str(self._root / "python"),
        }
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        core = [str(path.relative_to(ROOT)) for path in ROOT.glob("python/clonos/_core*.so")]
        for name in [*files.decode().split("\0"), *core]:
            if (ROOT / name).is_file():
                self._copy(ROOT / name, self._root / name)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        # What is as it was keeps its time, so that it is not compiled again.
        if target.exists() and target.read_bytes() == source.read_bytes():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def verdict(self, fault: Fault) -> str:
        """Say what came of the test that is to notice a fault."""
        file = self._root / fault.file
        whole = file.read_text()
        file.write_text(fault.put_back(whole))
        try:
            return self._run(fault.noticed_by)
        finally:
            file.write_text(whole)

    def _run(self, noticed_by: str) -> str:
        command = shlex.split(noticed_by)
        if command[0] == "pytest":
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *command[1:]]
        try:
            ran = subprocess.run(
                command,
                cwd=self._root,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it hangs"
        # Neither what does not compile nor a test that is not there has noticed anything.
        says = "test result: FAILED" if command[0] == "cargo" else " failed"
        if ran.returncode and says in ran.stdout:
            return ""
        said = "\n".join(ran.stdout.splitlines()[-_SHOWN_LINES:])
        return f"exit code {ran.returncode}\n{said}"


def main(numbers: list[str]) -> int:
    """Try the faults with these numbers, all without any; how many nobody notices."""
    tree = Tree(ROOT / "target" / "mutants")
    unnoticed = 0
    for fault in faults():
        if numbers and str(fault.number) not in numbers:
            continue
        begun = time.monotonic()
        verdict = tree.verdict(fault)
        unnoticed += bool(verdict)
        seconds = time.monotonic() - begun
        outcome = f"NOT NOTICED: {verdict}" if verdict else "noticed"
        print(f"{fault.number:3} {fault.name}: {outcome} ({seconds:.0f} s)", flush=True)
    print(f"{unnoticed} not noticed")
    return unnoticed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
