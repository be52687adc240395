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

    def passes(self, command: str) -> str:
        """Run a test on the code as it is; what it said, if it did not pass."""
        ran = self._run(command)
        has_run = "test result: ok. 0 passed" not in ran.stdout
        return "" if not ran.returncode and has_run else _said(ran)

    def notices(self, fault: Fault) -> str:
        """Run the test that is to notice a fault; what it said, if it did not."""
        file = self._root / fault.file
        whole = file.read_text()
        file.write_text(fault.put_back(whole))
        try:
            ran = self._run(fault.noticed_by)
        finally:
            file.write_text(whole)
        # What does not compile has noticed nothing.
        says = "test result: FAILED" if fault.noticed_by.startswith("cargo") else " failed"
        return "" if ran.returncode and says in ran.stdout else _said(ran)

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(command)
        if words[0] == "pytest":
            words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words[1:]]
        try:
            return subprocess.run(
                words,
                cwd=self._root,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 1, f"no end in {PATIENCE_SECONDS:.0f} s")


def _said(ran: subprocess.CompletedProcess[str]) -> str:
    last = "\n".join(ran.stdout.splitlines()[-_SHOWN_LINES:])
    return f"exit code {ran.returncode}\n{last}"


def main(numbers: list[str]) -> int:
    """Try the faults with these numbers, all without any; how many tests do not do their work."""
    tree = Tree(ROOT / "target" / "mutants")
    chosen = [fault for fault in faults() if not numbers or str(fault.number) in numbers]
    bad = 0
    # A test that fails without a fault notices nothing.
    for command in dict.fromkeys(fault.noticed_by for fault in chosen):
        if said := tree.passes(command):
            bad += 1
            print(f"FAILS AS IT IS: {command}: {said}", flush=True)
    for fault in chosen:
        begun = time.monotonic()
        said = tree.notices(fault)
        bad += bool(said)
        outcome = f"NOT NOTICED: {said}" if said else "noticed"
        seconds = time.monotonic() - begun
        print(f"{fault.number:3} {fault.name}: {outcome} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen)} faults, {bad} tests that fail without them or do not notice them")
    return bad


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
