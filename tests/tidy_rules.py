"""The rules of style as functions from source text to findings; tests/test_tidy.py applies them.

A finding is one line of text that names the place and says what to do instead. The Rust rules work
on text in which comments and the contents of strings are blank (see `blank_rust`), so that a word
in a comment is never taken for code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Where these appear outside src/edge and src/python, the core is no longer a pure machine.
IO_PATHS = (
    "std::fs",
    "std::net",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "rustix",
    "getrandom",
)
# Word -> what to write instead. Assembled, so that this file does not contain what it forbids.
LEFTOVERS = {"TO" + "DO": "do it or write an issue", "FIX" + "ME": "mend it or write an issue"}
RUST_TOKENS = re.compile(
    r"""(?P<line>//[^\n]*)
      | (?P<block>/\*)
      | (?P<raw>\b[bc]?r(?P<hashes>\#*)"(?:.*?)"(?P=hashes))
      | (?P<text>\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
      | (?P<char>'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])')""",
    re.VERBOSE | re.DOTALL,
)


def blank_rust(source: str) -> str:
    """Replace comments and the contents of strings by spaces; positions and lines stay."""
    pieces, position = [], 0
    while found := RUST_TOKENS.search(source, position):
        end = end_of_block_comment(source, found.start()) if found["block"] else found.end()
        pieces.append(source[position : found.start()])
        pieces.append(re.sub(r"[^\n]", " ", source[found.start() : end]))
        position = end
    return "".join([*pieces, source[position:]])


def end_of_block_comment(source: str, start: int) -> int:
    """Return where the comment that starts at `start` ends; they nest in Rust."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(source, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(source)


def closing_brace(blanked: str, opening: int) -> int:
    """Return the position of the brace that closes the one at `opening`."""
    depth = 0
    for mark in re.compile(r"[{}]").finditer(blanked, opening):
        depth += 1 if mark.group() == "{" else -1
        if depth == 0:
            return mark.start()
    return len(blanked) - 1


def without_rust_tests(blanked: str) -> str:
    """Blank each item under `#[cfg(test)]` that has a body in this file."""
    for found in reversed(list(re.finditer(r"#\[cfg\(test\)\]", blanked))):
        body = re.compile(r"[{;]").search(blanked, found.end())
        if body and body.group() == "{":
            end = closing_brace(blanked, body.start()) + 1
            hidden = re.sub(r"[^\n]", " ", blanked[found.start() : end])
            blanked = blanked[: found.start()] + hidden + blanked[end:]
    return blanked


def rust_modules_for_tests(blanked: str) -> list[str]:
    """Return the modules that exist under `#[cfg(test)]` only and have their own file."""
    return re.findall(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", blanked)


def line_of(text: str, position: int) -> int:
    """Return the line, from 1, on which `position` lies."""
    return text.count("\n", 0, position) + 1


def long_file(name: str, source: str) -> Iterator[str]:
    """Files stay short enough to be read in one go."""
    count = len(source.splitlines())
    if count > FILE_LINES_MAX:
        yield f"{name}: {count} lines, at most {FILE_LINES_MAX}: split it by idea"


def rust_functions(blanked: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, first line and number of lines of each function that has a body."""
    for found in re.finditer(r"\bfn\s+(\w+)", blanked):
        # An array type such as [u8; 4] holds the only semicolon that can stand in a signature.
        signature = re.compile(r"\[[^\[\]]*\]|[{;]")
        mark = next((m for m in signature.finditer(blanked, found.end()) if len(m[0]) == 1), None)
        if mark and mark.group() == "{":
            first = line_of(blanked, found.start())
            last = line_of(blanked, closing_brace(blanked, mark.start()))
            yield found.group(1), first, last - first + 1


def long_rust_functions(name: str, blanked: str) -> Iterator[str]:
    """Functions fit on a screen."""
    for function, first, count in rust_functions(blanked):
        if count > FUNCTION_LINES_MAX:
            yield f"{name}:{first}: fn {function} has {count} lines, at most {FUNCTION_LINES_MAX}"


def use_paths(tree: str, prefix: str = "") -> Iterator[str]:
    """Expand the tree of one `use` statement: `std::{fs, io::Read}` gives two paths."""
    depth, start = 0, 0
    for position, char in enumerate(tree + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            branch, start = tree[start:position].strip(), position + 1
            stem, brace, inner = branch.partition("{")
            if brace:
                yield from use_paths(inner.rstrip().removesuffix("}"), prefix + stem.strip())
            elif branch:
                yield prefix + branch.split(" as ")[0].strip()


def rust_io(name: str, blanked: str) -> Iterator[str]:
    """Files, sockets, clocks, threads, processes and entropy are met at the edge only."""
    seen = [
        (m.start(), p) for m in re.finditer(r"\buse\s+([^;]+);", blanked) for p in use_paths(m[1])
    ]
    seen += [(m.start(), m[0]) for m in re.finditer(r"\b\w+(?:::\w+)+", blanked)]
    for position, path in sorted(set(seen)):
        for banned in IO_PATHS:
            if path == banned or path.startswith(banned + "::"):
                yield f"{name}:{line_of(blanked, position)}: {path}: pass it in from src/edge"


def rust_pyo3(name: str, blanked: str) -> Iterator[str]:
    """Python is known to src/python alone."""
    for found in re.finditer(r"\bpyo3\w*|#\[py(?:class|function|methods|module)\b", blanked):
        place = f"{name}:{line_of(blanked, found.start())}"
        yield f"{place}: {found.group()}: PyO3 belongs in src/python"


def pyclasses(blanked: str) -> Iterator[tuple[int, str]]:
    """Yield line and arguments of each `#[pyclass]`."""
    for found in re.finditer(r"#\[(?:pyo3::)?pyclass\s*(?:\((.*?)\))?\s*\]", blanked, re.DOTALL):
        yield line_of(blanked, found.start()), found.group(1) or ""


def thawed_pyclasses(name: str, blanked: str) -> Iterator[str]:
    """Python objects of ours are immutable from outside; what changes stands behind a lock."""
    for line, arguments in pyclasses(blanked):
        if not re.search(r"\bfrozen\b", arguments):
            yield f"{name}:{line}: #[pyclass] without `frozen`"


def leftovers(name: str, source: str) -> Iterator[str]:
    """Nothing is left for later in the text of a file."""
    for word, instead in LEFTOVERS.items():
        for found in re.finditer(rf"\b{word}\b", source):
            yield f"{name}:{line_of(source, found.start())}: {word}: {instead}"


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines the docstring takes."""
    first = node.body[0]
    if ast.get_docstring(node) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def long_python_functions(name: str, source: str) -> Iterator[str]:
    """Functions fit on a screen; their documentation is not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if count > FUNCTION_LINES_MAX:
                place = f"{name}:{node.lineno}: {node.name}"
                yield f"{place} has {count} lines, at most {FUNCTION_LINES_MAX}"


def is_exempt(node: ast.stmt) -> bool:
    """Overloads, setters and the bare `...` of protocols are documented where they belong."""
    marks = {ast.unparse(d).split(".")[-1] for d in getattr(node, "decorator_list", [])}
    bodies = [ast.unparse(part) for part in getattr(node, "body", [])]
    return bodies == ["..."] or not marks.isdisjoint({"overload", "setter", "override"})


def protocol_methods(tree: ast.Module) -> set[str]:
    """Return the methods that a protocol of this module documents for all its implementations."""
    protocols = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    ]
    methods = [m for p in protocols for m in p.body if isinstance(m, ast.FunctionDef)]
    return {method.name for method in methods if ast.get_docstring(method)}


def undocumented(name: str, source: str) -> Iterator[str]:
    """Every module, public class, public function and public method says what it is for."""
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        yield f"{name}:1: the module has no docstring"
    known = protocol_methods(tree)
    for node in public_definitions(tree):
        if ast.get_docstring(node) is None:
            yield f"{name}:{node.lineno}: {node.name} has no docstring"
        for method in public_definitions(node) if isinstance(node, ast.ClassDef) else ():
            if ast.get_docstring(method) is None and method.name not in known:
                yield f"{name}:{method.lineno}: {node.name}.{method.name} has no docstring"


def public_definitions(
    parent: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public definitions directly inside `parent` that need a docstring."""
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and not is_exempt(node):
            yield node


# Rooms of the package in the order in which they may be used: each by those below it.
PYTHON_ROOMS = (
    "_worker",
    "_state",
    "_sources",
    "_sinks",
    "_loops",
    "_operators",
    "_connect",
    "_driver",
    "cli",
)


def imports_that_run_back(name: str, source: str) -> Iterator[str]:
    """A room imports nothing of the rooms below it, nor does a module that stands above all."""
    parts = name.removesuffix(".py").split("/")[2:]
    own = room_of(parts)
    if own is None:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            other = room_of(module.split(".")[1:]) if module.startswith("clonos.") else None
            if other is not None and other > own:
                yield f"{name}:{node.lineno}: {module} stands below this module"
                break


def room_of(parts: list[str]) -> int | None:
    """Rank of a module in the order of rooms; None for the package's public face."""
    if parts and parts[0] in PYTHON_ROOMS:
        return PYTHON_ROOMS.index(parts[0])
    return None if parts and parts[0] in {"__init__", "__main__", "functions", "testing"} else -1


def titles(name: str, source: str) -> Iterator[str]:
    """A page of documentation has one title, and it is its first line."""
    outside_code = re.sub(r"^(```|~~~).*?^\1", "", source, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^# .+", outside_code, re.MULTILINE)
    if len(found) != 1 or not source.startswith("# "):
        yield f"{name}: {len(found)} titles: a page starts with one `# ` line and has no other"


def local_links(source: str) -> list[str]:
    """Return the files that a page links to; pictures are made by the demo and not counted."""
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)", source)
    return [link for link in links if "://" not in link]


def broken_examples(name: str, source: str) -> Iterator[str]:
    """Python that is shown on a page can be pasted: it parses."""
    for found in re.finditer(r"^```python\n(.*?)^```", source, re.DOTALL | re.MULTILINE):
        try:
            ast.parse(found[1])
        except SyntaxError as error:
            line = line_of(source, found.start()) + (error.lineno or 0)
            yield f"{name}:{line}: the example does not parse: {error.msg}"


def export_order(names: list[str]) -> list[str]:
    """Sort as ruff's RUF022 does: CONSTANTS, then Classes, then the rest, each by name."""

    def rank(name: str) -> tuple[int, str]:
        if len(name) > 1 and name.isupper():
            return 0, name
        return (1, name) if name[0].isupper() else (2, name)

    return sorted(names, key=rank)
