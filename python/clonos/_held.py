"""What an object holds, as a pickle would have it, and whose it is: a library's or the user's."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import os
import site
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clonos._pickled import BYTES_MAX, SIMPLE, NotPlainError

# They hold the program to a cluster, a log or another object, and say nothing about answers.
_HANDLES = {"py4j", "logging", "weakref", "_weakref", "_weakrefset"}
_HANDLES_OF_SPARK = {"SparkContext", "SparkSession", "DataFrame", "Column", "RDD", "Accumulator"}
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_PLUMBING = {"pyspark", "clonos"} | _HANDLES


def is_users(module: str | None) -> bool:
    """Whether a module is the user's own, and not part of Python or of an installed package."""
    return module is None or _is_users(module)


@functools.cache
def _is_users(module: str) -> bool:
    if module in {"__main__", "__mp_main__"}:
        return True
    if is_of_python_or_spark(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        # Made in a notebook, or gone.
        return module not in sys.modules
    return is_users_file(file)


def is_of_python_or_spark(module: str) -> bool:
    """Whether a module is Python's own, or carries the program."""
    return is_of_python(module) or package_of(module) in _PLUMBING


def is_of_python(module: str) -> bool:
    """Whether a module is Python's own."""
    return module == "builtins" or package_of(module) in sys.stdlib_module_names


def is_installed(module: str | None) -> bool:
    """Whether a module is part of an installed package, and not of Python."""
    return module is not None and not is_users(module) and not is_of_python(module)


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether a file stands outside of the folders of Python and of installed packages."""
    return not str(Path(file).resolve()).startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Those of the user (`pip install --user`), of the system, and of what lies below a venv.
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {folder for folder in sys.path if Path(folder).name in _PACKAGE_FOLDERS}
    return tuple(str(Path(folder).resolve()) for folder in folders)


def is_note(value: Any) -> bool:
    """Whether a value is made of texts and numbers alone."""
    if isinstance(value, dict):
        return all(is_note(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_note, value))
    return isinstance(value, SIMPLE)


def package_of(module: str | None) -> str:
    """Return the package that a module is part of."""
    return str(module).partition(".")[0]


def is_found(module: str | None) -> bool:
    """Whether any process finds what stands in a module by its name."""
    return module is not None and module not in {"__main__", "__mp_main__"}


def is_imported(thing: Any) -> bool:
    """Whether a function or class is what any process imports by its name."""
    found: Any = sys.modules.get(thing.__module__) if is_found(thing.__module__) else None
    for name in thing.__qualname__.split("."):
        found = attributes(found).get(name)
    return found is thing


def counts_by_name(thing: Any) -> bool:
    """Whether a function or class is a library's, and does what it does for everybody."""
    if is_users(thing.__module__):
        return False
    # Functions of libraries that are made by other functions hold what these were given; those of
    # `functools` count by what they wrap.
    made = isinstance(thing, types.FunctionType) and not is_imported(thing)
    return not made or thing.__module__ == "functools"


def is_of_library(method: Any) -> bool:
    """Whether a bound method is a function of a library, as `random.random` is."""
    name = method.__name__
    return any(
        attributes(module).get(name) is method and not is_users(module_name)
        for module_name, module in list(sys.modules.items())
    )


def attributes(value: Any) -> Mapping[str, Any]:
    """Return what stands in the ``__dict__`` of an object, without asking the object."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return vars(value) if isinstance(value, type) else {}
    return held if isinstance(held, (dict, types.MappingProxyType)) else {}


def is_handle(value: Any, kind: type) -> bool:
    """Whether an object is a handle of something outside of the function."""
    if kind is type(os.environ):
        # It is another one on every host, and says nothing about what is read from it.
        return True
    package = package_of(kind.__module__)
    if package != "pyspark" or is_broadcast(kind):
        return package in _HANDLES
    held = attributes(value).values()
    return any(base.__name__ in _HANDLES_OF_SPARK for base in kind.__mro__) or any(
        package_of(type(part).__module__) == "py4j" for part in held
    )


def is_broadcast(kind: type) -> bool:
    """Whether objects of a type are Spark's broadcasts."""
    return kind.__name__ == "Broadcast" and package_of(kind.__module__) == "pyspark"


def broadcast_value(broadcast: Any) -> Any:
    """Return what a broadcast holds, or the digest of its file if that is very large."""
    path = attributes(broadcast).get("_path")
    if path is None or broadcast._sc._encryption_enabled:
        return broadcast.value
    if Path(path).stat().st_size <= BYTES_MAX:
        # Not `value`, which would keep it in the driver's memory from now on.
        return broadcast.load_from_path(path)
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def wrapped_function(value: Any, kind: type) -> Any:
    """Return the function that an object of Spark or of Clonos makes a UDF of, if it does."""
    if package_of(kind.__module__) not in {"pyspark", "clonos"}:
        return None
    with_options = getattr(kind, "_with_options", None)
    return attributes(value).get("func") if with_options is None else with_options(value)


def reduced(value: Any, kind: type) -> tuple[Any, ...]:
    """Return what a pickle of `value` for a worker would hold, filled up to five parts.

    Raises
    ------
    Exception
        Whatever the object raises if it cannot be pickled.
    """
    reducer = copyreg.dispatch_table.get(kind)
    try:
        found = value.__reduce_ex__(5) if reducer is None else reducer(value)
    except Exception:
        # Spark pickles some more, such as views of dicts.
        spark = sys.modules.get("pyspark.cloudpickle")
        if spark is None or kind not in spark.CloudPickler.dispatch_table:
            raise
        found = spark.CloudPickler.dispatch_table[kind](value)
    if isinstance(found, str):
        return (found, None, None, None, None)
    return (*found[:5], *[None] * (5 - len(found)))


def is_namespace(value: Any, kind: type, state: dict[Any, Any]) -> bool:
    """Whether a part of an object's state is its attributes, whose order means nothing.

    The dicts that an object hands out as its state by a method of its own are data, unless they
    are attributes under their names.
    """
    handed_out = any(
        getattr(kind, name) is not getattr(object, name)
        for name in ("__getstate__", "__reduce__", "__reduce_ex__")
    )
    return not handed_out or state.keys() <= attributes(value).keys()


def name_of(value: Any) -> str:
    """Return the name of a function, a class or a module, else that of its type."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{getattr(value, '__module__', '')}.{name or type(value).__qualname__}"


def data(_value: Any, kind: type) -> None:
    """Refuse what is not plain data."""
    if kind is not dict:
        raise NotPlainError


def plain(value: Any, kind: type) -> Any:
    """Stand for what no pickle tells in objects of libraries."""
    if kind is dict:
        return None
    if issubclass(kind, (set, frozenset)):
        raise NotPlainError
    if kind is types.FunctionType or issubclass(kind, type):
        if not counts_by_name(value):
            raise NotPlainError
    elif is_users(kind.__module__) or kind is functools._lru_cache_wrapper:
        raise NotPlainError
    return by_name(value, kind)


def by_name(value: Any, kind: type) -> Any:
    """Stand for handles, and for what must not be pickled to no purpose."""
    if kind is dict:
        return None
    if is_broadcast(kind) or wrapped_function(value, kind) is not None:
        raise NotPlainError
    return ("handle", name_of(kind)) if is_handle(value, kind) else None
