"""What a function is: a fingerprint of what it does and of what it holds.

Two functions of one name may be two functions (made by one factory, two lambdas, two instances of
a callable class), and one name may stand for another function after a restart. A fingerprint
therefore covers, besides the bytecode, everything that the code refers to: closures, defaults,
bound arguments, the state of the instance, globals, and the user's own helper functions and classes
with all that these refer to.

It ends where a library begins. A function or class of an installed package counts by its name, an
object of one by what it pickles to, and what cannot be pickled (a client, a lock) by its type.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from clonos._pickled import stable_pickle

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# Values nested deeper, and more of them, count by their type alone.
DEPTH_MAX = 40
VALUES_MAX = 200_000
_SIMPLE = (bool, int, float, complex, str, bytes, bytearray, type(None), type(...), range)


def code_fingerprint(fn: Callable[..., Any], version: str | None = None) -> int:
    """Return 64 bits that change when `fn` changes: its code, or anything that it refers to.

    Bytecode differs between Python versions, so fingerprints are compared only between equal
    versions (`PYTHON_VERSION`).

    Parameters
    ----------
    fn : callable
    version : str, optional
        The user's name for this version of the function: nothing else counts then.
    """
    walk = _Walk()
    if version is None:
        walk.root(fn)
    else:
        walk.note("version", version)
    return walk.result()


class _Walk:
    """Feeds a hash with everything that is reached from one function."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._under_way: set[int] = set()
        # Functions and classes that were noted, so that each counts once however often it is named.
        self._noted: dict[int, int] = {}
        self._left = VALUES_MAX

    def result(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")

    def note(self, kind: str, text: str | bytes = b"") -> None:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    def root(self, fn: Any) -> None:
        """Note the operator's own function, which counts in full wherever it was installed."""
        inner = fn
        while isinstance(inner, functools.partial):
            inner = inner.func
        inner = getattr(inner, "__wrapped__", inner)
        inner = getattr(inner, "__func__", inner)
        if not isinstance(inner, types.FunctionType):
            inner = vars(type(inner)).get("__call__")
        if isinstance(inner, types.FunctionType):
            self._function(inner, 0, own=True)
        self.value(fn, 0)

    def value(self, value: Any, depth: int) -> None:
        """Note a value of any type."""
        self._left -= 1
        kind = type(value)
        if kind in _SIMPLE:
            self.note(kind.__name__, value if isinstance(value, bytes) else repr(value))
        elif id(value) in self._under_way:
            # A function that refers to itself, or an object that holds itself.
            self.note("again", _name(value))
        elif id(value) in self._noted:
            self.note("noted", str(self._noted[id(value)]))
        elif kind in {tuple, list} and all(type(item) in _SIMPLE for item in value):
            # However many there are.
            self.note(kind.__name__, repr(value))
        elif depth > DEPTH_MAX or self._left < 0:
            self.note("deep", _name(kind))
        else:
            self._under_way.add(id(value))
            self._composed(value, kind, depth + 1)
            self._under_way.discard(id(value))
            if kind is types.FunctionType or isinstance(value, type):
                self._noted[id(value)] = len(self._noted)

    def _composed(self, value: Any, kind: type, depth: int) -> None:
        if kind in {tuple, list}:
            self.note(kind.__name__, str(len(value)))
            self._all(value, depth)
        elif kind in {set, frozenset}:
            self._unordered("set", [(item,) for item in value], depth)
        elif kind in {dict, types.MappingProxyType}:
            self._unordered("dict", list(value.items()), depth)
        elif kind is functools.partial:
            self.note("partial")
            self._all((value.func, value.args, value.keywords), depth)
        elif kind is types.MethodType:
            self.note("method")
            self._all((value.__func__, value.__self__), depth)
        elif kind is types.FunctionType:
            self._function(value, depth)
        elif kind in {staticmethod, classmethod, property, functools.cached_property}:
            self.note(kind.__name__)
            parts = ("__func__", "fget", "fset", "func")
            self._all([getattr(value, part) for part in parts if hasattr(value, part)], depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.note("cached")
            self.value(value.__wrapped__, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif kind is types.ModuleType or kind in {
            types.BuiltinFunctionType,
            types.WrapperDescriptorType,
        }:
            self.note("name", _name(value))
        else:
            self._instance(value, kind, depth)

    def _all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self.value(value, depth)

    def _unordered(self, kind: str, items: list[tuple[Any, ...]], depth: int) -> None:
        """Note items whose order means nothing, or depends on the process."""
        digests = []
        for item in items:
            walk = _Walk()
            walk._under_way, walk._left = self._under_way, self._left
            walk._noted = self._noted
            noted = len(self._noted)
            walk._all(item, depth)
            # What one item noted is not noted for another: which of them comes first depends on
            # the process.
            while len(self._noted) > noted:
                self._noted.popitem()
            self._left = walk._left
            digests.append(walk._hash.digest())
        self.note(kind, b"".join(sorted(digests)))

    def _function(self, fn: types.FunctionType, depth: int, own: bool = False) -> None:
        wrapped = getattr(fn, "__wrapped__", None)
        if not (own or _is_users(getattr(fn, "__module__", None)) or wrapped is not None):
            self.note("function", _name(fn))
            return
        self.note("function")
        self._code(fn.__code__)
        self._all((fn.__defaults__, fn.__kwdefaults__), depth)
        for cell in fn.__closure__ or ():
            try:
                self.value(cell.cell_contents, depth)
            except ValueError:
                self.note("empty cell")
        names = set(_names(fn.__code__))
        for name in sorted(names & fn.__globals__.keys()):
            if not name.startswith("__"):
                self.note("global", name)
                self._global(fn.__globals__[name], names, depth)
        for name in sorted(names - fn.__globals__.keys()):
            # Imported inside the function.
            if isinstance(sys.modules.get(name), types.ModuleType) and _is_users(name):
                self._global(sys.modules[name], names, depth)

    def _global(self, value: Any, names: set[str], depth: int) -> None:
        if isinstance(value, types.ModuleType) and _is_users(value.__name__):
            # What a function takes from a module of the user's own, as in `helpers.clean(text)`.
            self.note("module", value.__name__)
            for name in sorted(names & vars(value).keys()):
                if not name.startswith("__") and vars(value)[name] is not value:
                    self._global(vars(value)[name], names, depth)
        else:
            self.value(value, depth)

    def _code(self, code: types.CodeType) -> None:
        self.note("code", code.co_code)
        self.note("names", "\0".join(code.co_names + code.co_varnames))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self.value(constant, 0)

    def _class(self, kind: type, depth: int) -> None:
        self.note("class", _name(kind))
        if not _is_users(kind.__module__):
            return
        self._all(kind.__bases__, depth)
        for name, member in sorted(vars(kind).items()):
            if name not in _NO_PART_OF_A_CLASS:
                self.note("member", name)
                self.value(member, depth)

    def _instance(self, value: Any, kind: type, depth: int) -> None:
        self.note("instance", _name(kind))
        fn = getattr(value, "__wrapped__", None)
        if _is_users(kind.__module__):
            self._class(kind, depth)
            self.value(_state(value), depth)
        elif kind.__module__.partition(".")[0] in _PLUMBING:
            # Handles of Spark, and our own wrapper of the user's function.
            if isinstance(fn, types.FunctionType):
                self.value(fn, depth)
        else:
            pickled = stable_pickle(value)
            if pickled is not None:
                self.note("pickle", pickled)
            elif isinstance(value, (dict, list, set, frozenset)):
                # As a defaultdict whose default is a lambda.
                self.value(getattr(value, "default_factory", None), depth)
                plain = dict if isinstance(value, dict) else list
                self.value(plain(value), depth)


_PLUMBING = {"pyspark", "py4j", "clonos", "logging"}
# Written by the interpreter, not by the user.
_NO_PART_OF_A_CLASS = {
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__abstractmethods__",
    "_abc_impl",
    "__match_args__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
}


def _state(value: Any) -> Any:
    slots = [
        name
        for kind in type(value).__mro__
        for name in _as_names(vars(kind).get("__slots__", ()))
        if name not in {"__dict__", "__weakref__"}
    ]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    if isinstance(value, (list, tuple, set, frozenset)):
        held[" items"] = list(value) if isinstance(value, (list, tuple)) else set(value)
    elif isinstance(value, dict):
        held[" items"] = dict(value)
    elif isinstance(value, _SIMPLE):
        held[" value"] = repr(value)
    return held | getattr(value, "__dict__", {})


def _as_names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{getattr(value, '__module__', '')}.{name or type(value).__qualname__}"


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(str(Path(folder).resolve()) for folder in folders)


@functools.cache
def _is_users(module: str | None) -> bool:
    """Whether a module is the user's own, and not part of Python or of an installed package."""
    if module is None or module in {"__main__", "__mp_main__"}:
        return True
    if module == "builtins" or module.partition(".")[0] in sys.stdlib_module_names | _PLUMBING:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        # Made in a notebook, or gone.
        return module not in sys.modules
    return not str(Path(file).resolve()).startswith(_library_folders())


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def mentions(fn: Callable[..., Any], name: str) -> bool:
    """Whether `name` stands in the code of `fn`, or of functions it names, of any depth."""
    seen: set[int] = set()
    pending: list[Any] = [fn]
    while pending:
        candidate = pending.pop()
        while isinstance(candidate, functools.partial):
            candidate = candidate.func
        code = _code_of(candidate) if callable(candidate) else None
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        names = set(_names(code))
        if name in names:
            return True
        scope = getattr(candidate, "__globals__", {})
        named = (scope[other] for other in names if other in scope)
        pending.extend(value for value in named if isinstance(value, types.FunctionType))
        for cell in getattr(candidate, "__closure__", None) or ():
            try:
                pending.append(cell.cell_contents)
            except ValueError:
                continue
    return False


def _code_of(fn: Callable[..., Any]) -> types.CodeType | None:
    code = getattr(fn, "__code__", None)
    if code is None:
        # A method, or an instance whose class can be called.
        method = getattr(fn, "__func__", None) or vars(type(fn)).get("__call__")
        code = getattr(method, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
