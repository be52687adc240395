"""Style as a test: each rule asserts how much it looked at and is shown to be able to fail."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import tidy_rules as rules

ROOT = Path(__file__).resolve().parent.parent
# A rule that looks at fewer files than this has lost its way (raise the numbers as the tree grows).
RUST_FILES_MIN = 25
PYTHON_FILES_MIN = 15
PYCLASSES_MIN = 3
PAGES_MIN = 5
EXPORTS_MIN = 10

Rule = Callable[[str, str], Iterable[str]]


def tree(*folders: str, suffix: str) -> dict[str, str]:
    """Return name and text of the files with `suffix` under `folders`."""
    paths = [p for f in folders for p in sorted((ROOT / f).rglob(f"*{suffix}")) if p.is_file()]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def modules_for_tests(files: dict[str, str]) -> set[Path]:
    """Return the files and folders that are declared as `#[cfg(test)] mod name;`."""
    found: set[Path] = set()
    for name, text in files.items():
        path = Path(name)
        holder = path.parent if path.stem in {"mod", "lib"} else path.with_suffix("")
        for module in rules.rust_modules_for_tests(text):
            found |= {holder / module, holder / f"{module}.rs"}
    return found


def rust(*, tests: bool) -> dict[str, str]:
    """Return the sources of the crate, blanked; without their tests unless asked for."""
    files = {name: rules.blank_rust(text) for name, text in tree("src", suffix=".rs").items()}
    assert len(files) >= RUST_FILES_MIN
    if tests:
        return files
    hidden = modules_for_tests(files)
    shown = {n: t for n, t in files.items() if hidden.isdisjoint({Path(n), *Path(n).parents})}
    return {name: rules.without_rust_tests(text) for name, text in shown.items()}


def core() -> dict[str, str]:
    """Return the part of the crate that meets neither Python nor the operating system."""
    files = {
        n: t for n, t in rust(tests=False).items() if not n.startswith(("src/edge", "src/python"))
    }
    assert len(files) >= RUST_FILES_MIN // 2
    return files


def python(*folders: str) -> dict[str, str]:
    """Return the Python sources under `folders`."""
    files = tree(*folders, suffix=".py")
    assert files, f"no Python under {folders}"
    return files


def pages() -> dict[str, str]:
    """Return the pages of documentation."""
    files = tree("docs", suffix=".md")
    files |= {name: (ROOT / name).read_text(encoding="utf-8") for name in TOP_PAGES}
    assert len(files) >= PAGES_MIN
    return files


TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
ALL_PYTHON = ("python", "tests", "benches", "examples", ".ci")


def expect_none(rule: Rule, files: dict[str, str]) -> None:
    """Fail with every finding of `rule` in `files`."""
    found = [finding for name, text in files.items() for finding in rule(name, text)]
    assert not found, "\n" + "\n".join(found)


def test_no_file_is_too_long():
    files = rust(tests=True) | python(*ALL_PYTHON) | tree("tests", "benches", suffix=".rs")
    assert len(files) >= RUST_FILES_MIN + PYTHON_FILES_MIN
    expect_none(rules.long_file, files)


def test_no_function_is_too_long():
    sources = rust(tests=True)
    assert sum(1 for text in sources.values() for _ in rules.rust_functions(text)) > 200
    expect_none(rules.long_rust_functions, sources)
    expect_none(rules.long_python_functions, python(*ALL_PYTHON))


def test_only_src_python_knows_pyo3():
    everything = rust(tests=True)
    inside = {name: text for name, text in everything.items() if name.startswith("src/python/")}
    outside = {name: text for name, text in everything.items() if name not in inside}
    assert any(list(rules.rust_pyo3(name, text)) for name, text in inside.items())
    expect_none(rules.rust_pyo3, outside)


def test_the_core_does_no_io():
    at_edge = tree("src/edge", suffix=".rs")
    assert any(list(rules.rust_io(n, rules.blank_rust(t))) for n, t in at_edge.items())
    expect_none(rules.rust_io, core())


def test_python_imports_go_one_way():
    files = {n: t for n, t in python("python").items() if n.startswith("python/clonos/")}
    rooms = {name.split("/")[2] for name in files}
    assert set(rules.PYTHON_ROOMS) <= rooms
    expect_none(rules.imports_that_run_back, files)


def test_every_pyclass_is_frozen():
    files = rust(tests=True)
    assert sum(1 for text in files.values() for _ in rules.pyclasses(text)) >= PYCLASSES_MIN
    expect_none(rules.thawed_pyclasses, files)


def test_nothing_is_left_for_later():
    files = tree("src", "tests", "benches", suffix=".rs") | python(*ALL_PYTHON) | pages()
    files |= {
        n: (ROOT / n).read_text(encoding="utf-8") for n in ("Makefile", "Cargo.toml", ".ci/run")
    }
    expect_none(rules.leftovers, files)


def test_every_public_python_name_is_documented():
    expect_none(rules.undocumented, python("python"))


def test_every_page_has_one_title():
    expect_none(rules.titles, pages())


def test_links_between_pages_lead_somewhere():
    found = {
        name: [ROOT / Path(name).parent / target for target in rules.local_links(text)]
        for name, text in pages().items()
    }
    assert sum(map(len, found.values())) >= PAGES_MIN
    assert not [
        f"{name}: {to}" for name, targets in found.items() for to in targets if not to.exists()
    ]


def test_examples_on_pages_parse():
    assert sum(text.count("```python\n") for text in pages().values()) >= 1
    expect_none(rules.broken_examples, pages())


def test_the_readme_shows_how_to_start():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_exports_are_sorted_and_exist():
    clonos = importlib.import_module("clonos")
    names = list(clonos.__all__)
    assert len(names) >= EXPORTS_MIN
    assert names == rules.export_order(names)
    assert len(names) == len(set(names))
    missing = [name for name in names if not hasattr(clonos, name)]
    assert not missing


def test_lock_files_pin_exactly_and_name_no_host():
    for name in ("requirements-dev.lock", "requirements-java.lock"):
        lines = [x for x in (ROOT / name).read_text().splitlines() if not x.startswith("#")]
        assert lines
        loose = [line for line in lines if line.count("==") != 1 or "/" in line or "@" in line]
        assert not loose


def test_scripts_parse():
    scripts = [p for p in (ROOT / ".ci").iterdir() if p.suffix != ".py"]
    assert len(scripts) >= 3
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)


# --- the rules themselves: each finds what it forbids, and only that ------------------------

PROTOCOL = """'M'
class P(Protocol):
    'P.'
    def run(self):
        'Do it.'
class A:
    'A.'
    def run(self):
        pass
"""
LONG_RUST = "fn long(a: [u8; 4]) -> u8 {\n" + "    a();\n" * 70 + "}\n"
LONG_PYTHON = "def long():\n" + "    a()\n" * 71
LATER = "TO" + "DO"
BAD: list[tuple[Rule, str]] = [
    (rules.long_file, "x\n" * 501),
    (rules.long_rust_functions, LONG_RUST),
    (rules.long_python_functions, LONG_PYTHON),
    (rules.rust_io, "use std::fs::File;"),
    (rules.rust_io, "use std::{collections::{BTreeMap, btree_map}, thread};"),
    (rules.rust_io, "use std::time::{Duration, Instant as Now};"),
    (rules.rust_io, "fn f() { let x = std::time::SystemTime::now(); }"),
    (rules.rust_io, "use rustix::fs as unix_fs;"),
    (rules.imports_that_run_back, "from clonos._driver import session"),
    (rules.imports_that_run_back, "def f():\n    from clonos._operators.udf import causal"),
    (rules.rust_pyo3, "use pyo3::prelude::*;"),
    (rules.rust_pyo3, "use pyo3_arrow::PyArray;"),
    (rules.rust_pyo3, "#[pyfunction]\nfn f() {}"),
    (rules.thawed_pyclasses, "#[pyclass]\nstruct A;"),
    (rules.thawed_pyclasses, '#[pyclass(name = "A", module = "clonos")]\nstruct PyA;'),
    (rules.leftovers, f"x = 1  # {LATER}: later"),
    (rules.undocumented, "def f():\n    pass\n"),
    (rules.undocumented, '"""M."""\nclass A:\n    """A."""\n    def f(self):\n        pass\n'),
    (rules.titles, "# One\n\n# Two\n"),
    (rules.titles, "no title\n"),
    (rules.broken_examples, "# T\n\n```python\ndef f(:\n```\n"),
]
GOOD: list[tuple[Rule, str]] = [
    (rules.long_file, "x\n" * 500),
    (rules.long_rust_functions, "fn short() { let s = \"{{{\"; let c = '{'; }\n" + "// }\n" * 90),
    (rules.long_python_functions, 'def f():\n    """\n' + "    a\n" * 90 + '    """\n'),
    (rules.rust_io, "use std::time::Duration; use std::{io, sync::Arc}; // std::fs"),
    (rules.rust_io, 'fn f<\'a>(x: &\'a str) { g("std::fs", r#"std::net "quoted" "#); }'),
    (rules.rust_pyo3, "/* pyo3 /* nested */ pyo3 */ fn f() {}"),
    (rules.thawed_pyclasses, '#[pyclass(frozen, module = "clonos")]\nstruct A;'),
    (rules.leftovers, "a method"),
    (rules.undocumented, '"""M."""\ndef _f():\n    pass\n'),
    (rules.undocumented, '"""M."""\nclass P:\n    """P."""\n    def f(self): ...\n'),
    (rules.undocumented, '"""M."""\n@overload\ndef f():\n    pass\n'),
    (rules.undocumented, PROTOCOL),
    (rules.broken_examples, "# T\n\n```python\nf(1)\n```\n\n```sh\nmake (\n```\n"),
    (rules.titles, "# One\n\n```sh\n# not a title\n```\n"),
]


def findings(rule: Rule, source: str) -> Iterator[str]:
    """Apply a rule as the tests above do."""
    if "rust" in rule.__name__ or "pyclass" in rule.__name__:
        source = rules.without_rust_tests(rules.blank_rust(source))
    return iter(rule("example", source))


@pytest.mark.parametrize(("rule", "source"), BAD)
def test_a_rule_finds_what_it_forbids(rule, source):
    assert len(list(findings(rule, source))) >= 1


@pytest.mark.parametrize(("rule", "source"), GOOD)
def test_a_rule_leaves_the_rest_alone(rule, source):
    assert list(findings(rule, source)) == []


def test_positions_survive_blanking():
    source = 'let a = "x\ny"; // c\nfn f() { /* { */ }\n'
    blanked = rules.blank_rust(source)
    assert len(blanked) == len(source)
    assert [f[:2] for f in rules.rust_functions(blanked)] == [("f", 3)]


def test_modules_for_tests_are_recognised():
    files = {
        "src/task/mod.rs": "#[cfg(test)]\nmod tests;\nmod state;",
        "src/task/state.rs": "#[cfg(test)] pub(crate) mod fixtures;",
    }
    wanted = {"src/task/tests", "src/task/tests.rs"}
    wanted |= {"src/task/state/fixtures", "src/task/state/fixtures.rs"}
    assert modules_for_tests(files) == {Path(name) for name in wanted}


def test_links_are_found():
    page = "# T\n[a](docs/a.md#x) [b](https://b.c/d.md) ![c](docs/c.png) [d](LICENSE)\n"
    assert rules.local_links(page) == ["docs/a.md", "LICENSE"]


def test_exports_sort_as_ruff_does():
    names = ["attach", "Session", "SCHEMA", "__version__", "ReplayDivergence"]
    wanted = ["SCHEMA", "ReplayDivergence", "Session", "__version__", "attach"]
    assert rules.export_order(names) == wanted
