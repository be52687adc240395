"""Classes that an installed library makes of what the user wrote, equal for equal numbers only.

The library is made here, and does what pydantic does: it takes the fields out of the class, and
leaves tables of them, schemas with addresses in them, and caches. As a program it prints the
fingerprint of a function that uses each class.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from held import holder

from clonos._code import fingerprint

LIBRARY = """
import threading


class Field:
    def __init__(self, default=None, **limits):
        self.default, self.limits = default, limits


class Check:
    def __init__(self, function, mode):
        self.function, self.mode, self.owner = function, mode, None


class Checks:
    __slots__ = ("checks",)

    def __init__(self, checks):
        self.checks = checks


class Compiled:
    def __init__(self):
        self.lock = threading.Lock()


def check(mode):
    return lambda function: Check(function, mode)


class Maker(type):
    def __new__(mcs, name, bases, members, **config):
        fields, checks = {}, {}
        for field in members.get("__annotations__", {}):
            found = members.pop(field, None)
            fields[field] = found if isinstance(found, Field) else Field(found)
        for member, held in list(members.items()):
            if isinstance(held, Check):
                checks[member], members[member] = held, held.function
        made = super().__new__(mcs, name, bases, members)
        made.config = config
        made.__fields__ = fields
        made.__checks__ = Checks(checks)
        for held in checks.values():
            held.owner = f"{name}:{id(made)}"
        made.__schema__ = {"ref": f"{name}:{id(made)}", "kind": made, "lock": threading.Lock()}
        made.__compiled__ = Compiled()
        made.__cache__ = {}
        return made

    def __call__(cls, **values):
        cls.__cache__["made"] = [lambda: values, threading.Lock()]
        return super().__call__(**values)


class Base(metaclass=Maker):
    def __init__(self, **values):
        vars(self).update(values)


class Closed(type):
    def __new__(mcs, name, bases, members):
        made = super().__new__(mcs, name, bases, members)
        made.__compiled__ = Compiled()
        return made


def described(kind):
    kind.__fields__ = {name: Field(getattr(kind, name, None)) for name in kind.__annotations__}
    kind.__schema__ = {"ref": f"{kind.__name__}:{id(kind)}", "lock": threading.Lock()}
    return kind
"""


def installed(name: str) -> Any:
    """Return the library as a module that stands where packages are installed."""
    module: Any = types.ModuleType(name)
    module.__file__ = str(Path(sysconfig.get_paths()["purelib"], f"{name}.py"))
    sys.modules[name] = module
    exec(compile(LIBRARY, module.__file__, "exec"), vars(module))
    return module


library = installed("clonos_test_library")


def declared(annotations: dict[str, Any], **rest: Any) -> type:
    """Return a class of the library's, as a statement would make it."""
    config = rest.pop("config", {})
    members = {"__module__": __name__, "__annotations__": annotations, **rest}
    made = types.new_class("Declared", (library.Base,), config, lambda held: held.update(members))
    assert isinstance(made, type)
    return made


def checked(n: int) -> Callable[[Any, Any], Any]:
    return lambda _kind, value: value + n


def mentions_a_private_name(self: Any) -> Any:
    return self._hidden


def decorated(n: int) -> Any:
    class Decorated:
        size: int = n

    return library.described(Decorated)


MAKERS: dict[str, Callable[[int], Any]] = {
    "type of a field": lambda n: declared({"a": [int, str][n - 1]}),
    "default of a field": lambda n: declared({"a": int}, a=n),
    "limit of a field": lambda n: declared({"a": int}, a=library.Field(0, ge=n)),
    "factory of a field": lambda n: declared({"a": int}, a=library.Field(checked(n))),
    "check": lambda n: declared({"a": int}, check=library.check("after")(checked(n))),
    "mode of a check": lambda n: declared({"a": int}, check=library.check(str(n))(checked(1))),
    "config": lambda n: declared({"a": int}, config={"frozen": n}),
    "method": lambda n: declared({"a": int}, method=checked(n)),
    "text": lambda n: declared({"a": int}, __doc__=f"Between {n} and 9."),
    "instance": lambda n: declared({"a": int})(a=n),
    "bound method": lambda n: declared({"a": int}, method=classmethod(checked(n))).method,
    "nested": lambda n: declared({"a": declared({"b": int}, b=n)}),
    "inherited": lambda n: library.Maker(
        "Child", (declared({"a": int}, a=n),), {"__module__": __name__}
    ),
    "decorated": decorated,
}


def _pydantic_makers() -> dict[str, Callable[[int], Any]]:
    import pydantic
    import pydantic.dataclasses

    def statement(n: int) -> Any:
        class Model(pydantic.BaseModel):
            """A model."""

            kind: ClassVar[int] = 3
            a: int = pydantic.Field(0, ge=n)
            b: list[int] = pydantic.Field(default_factory=lambda: [n])
            _c: int = pydantic.PrivateAttr(n)

            @pydantic.field_validator("a")
            @classmethod
            def check(cls, value: int) -> int:
                return value + n

        return Model

    def mode(n: int) -> Any:
        class Model(pydantic.BaseModel):
            a: int

            @pydantic.field_validator("a", mode=["before", "after"][n - 1])
            @classmethod
            def check(cls, value: Any) -> Any:
                return value

        return Model

    def dataclass(n: int) -> Any:
        @pydantic.dataclasses.dataclass
        class Data:
            a: int = n

        return Data

    def made(n: int, kind: Any = int, **rest: Any) -> Any:
        return pydantic.create_model("Model", __module__=__name__, a=(kind, n), **rest)

    return {
        "pydantic model": statement,
        "pydantic default": made,
        "pydantic type": lambda n: made(0, [int, str][n - 1]),
        "pydantic limit": lambda n: made(0, Annotated[int, pydantic.Field(lt=n)]),
        "pydantic check in a type": lambda n: made(
            0, Annotated[int, pydantic.AfterValidator(lambda value: value + n)]
        ),
        "pydantic mode of a check": mode,
        "pydantic config": lambda n: made(0, __config__={"frozen": n == 1}),
        "pydantic instance": lambda n: statement(1)(a=n),
        "pydantic schema": lambda n: made(n).model_json_schema,
        "pydantic nested": lambda n: made(None, made(n)),
        "pydantic dataclass": dataclass,
        "pydantic adapter": lambda n: pydantic.TypeAdapter(made(n)),
        "pydantic root": lambda n: pydantic.RootModel[[list[int], list[str]][n - 1]],
    }


HAS_PYDANTIC = importlib.util.find_spec("pydantic") is not None
if HAS_PYDANTIC:
    MAKERS |= _pydantic_makers()


if __name__ == "__main__":
    # Other addresses than in the other process.
    kept = [type(f"Kept{i}", (), {}) for i in range(int(sys.argv[1]))]
    for name, make in MAKERS.items():
        print(name, *fingerprint(holder(make(1))))
