"""What a function imports inside itself counts by its file, loaded or not."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from held import holder
from seeds import printed

from clonos._code import code_fingerprint, fingerprint

FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": "from . import rates\n\ndef price(x):\n    return x * rates.RATE\n",
    "shop/rates.py": "RATE = 1\n",
    "shop/deep/__init__.py": "",
    "shop/deep/far.py": "def far(x):\n    return x\n",
    "bare/below/inner.py": "def inner(x):\n    return x\n",
    "shop/ops.py": """
        def absolute(x):
            from shop.prices import price
            return price(x)

        def relative(x):
            from .prices import price
            return price(x)

        def module(x):
            from . import prices
            return prices.price(x)

        def dotted(x):
            import shop.prices
            return shop.prices.price(x)

        def lazily(x):
            def inside():
                from shop import prices
                return prices
            return inside().price(x)

        def above(x):
            from .deep.far import far
            return far(x)

        def bare(x):
            from bare.below.inner import inner
            return inner(x)

        def library(x):
            import json
            from numpy.linalg import norm
            return norm(json.loads(x))
    """,
}
OF_PRICES = ["absolute", "relative", "module", "dotted", "lazily"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the functions of `shop.ops`, without having loaded what they import."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__", "__package__": "shop"}
    exec(textwrap.dedent(FILES["shop/ops.py"]), scope)
    before = set(sys.modules)
    yield scope.__getitem__
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", [*OF_PRICES, "above", "bare", "library"])
def test_it_does_not_matter_whether_a_module_is_loaded(shop: Any, name: str) -> None:
    before = fingerprint(shop(name))
    assert before.unseen is None
    assert not {"shop", "bare"} & sys.modules.keys()
    shop(name)("[1]" if name == "library" else 1)
    assert fingerprint(shop(name)) == before


def test_a_module_that_is_loaded_into_its_package_changes_nothing(
    shop: Any, tmp_path: Path
) -> None:
    inside = "def price(x):\n    from . import prices\n    return prices.price(x)\n"
    (tmp_path / "shop/__init__.py").write_text(inside)
    package = importlib.import_module("shop")
    before = code_fingerprint(package.price)
    package.price(1)
    assert vars(package)["prices"]
    assert code_fingerprint(package.price) == before


def test_modules_in_an_archive_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in (1, 2):
        archive = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("clonos_packed.py", f"limit = {number}\n")
        with monkeypatch.context() as path:
            path.syspath_prepend(archive)
            found.append(fingerprint(made("import clonos_packed")))
    assert found[0].unseen is None
    assert found[0] != found[1]


@pytest.mark.parametrize("name", OF_PRICES)
@pytest.mark.parametrize("file", ["shop/prices.py", "shop/rates.py", "shop/__init__.py"])
def test_files_count_that_are_imported(shop: Any, name: str, file: str, tmp_path: Path) -> None:
    before = code_fingerprint(shop(name))
    with (tmp_path / file).open("a") as written:
        written.write("\nMORE = 1\n")
    assert code_fingerprint(shop(name)) != before
    (tmp_path / file).write_text(textwrap.dedent(FILES[file]))
    assert code_fingerprint(shop(name)) == before


@pytest.mark.parametrize(
    ("name", "file"), [("above", "shop/deep/far.py"), ("bare", "bare/below/inner.py")]
)
def test_modules_below_others_count(shop: Any, name: str, file: str, tmp_path: Path) -> None:
    before = code_fingerprint(shop(name))
    (tmp_path / file).write_text("def inner(x): return 2\nfar = inner\n")
    assert code_fingerprint(shop(name)) != before


def made(text: str, **scope: Any) -> Any:
    scope = {"__name__": "__main__", **scope}
    exec(f"def function(x):\n    {text}\n", scope)
    return scope["function"]


def test_what_is_not_found_by_its_name_is_told() -> None:
    assert fingerprint(made("from .sibling import it")).unseen == "module .sibling"


@pytest.mark.parametrize(
    "text", ["import clonos_no_such", "from clonos_no_such.below import it"], ids=["whole", "below"]
)
def test_an_absent_module_counts_as_absent(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(made(text))
    assert before.unseen is None
    folder = tmp_path / "clonos_no_such"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "below.py").write_text("it = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    there = fingerprint(made(text))
    assert there.unseen is None
    assert there.code != before.code


def test_a_module_without_a_file_counts_by_what_is_used_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = types.ModuleType("clonos_made_here")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.limit = 1
    function = made("import clonos_made_here; return clonos_made_here.limit")
    before = fingerprint(function)
    assert before.unseen is None
    module.limit = 2
    assert code_fingerprint(function) != before.code


def test_modules_that_import_each_other_have_an_end(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import other\n\ndef f(x):\n    return x\n")
    (tmp_path / "other.py").write_text("import one\n\ndef g(x):\n    return x\n")
    (tmp_path / "inside.py").write_text("def f(x):\n    import one\n    return one.f(x)\n")
    program = """
        import one, other, inside
        from clonos._code import fingerprint

        def function(x):
            return one.f(other.g(inside.f(x)))

        print(fingerprint(function))
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    answers = printed(file)
    assert len(answers) == 1


def test_the_environment_is_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_fingerprint(holder([os.environ, os.environ.get]))
    monkeypatch.setenv("CLONOS_TEST_OF_THE_ENVIRONMENT", "1")
    assert code_fingerprint(holder([os.environ, os.environ.get])) == before
