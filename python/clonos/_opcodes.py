"""What a pickle would make, as a tree of nodes: nothing is imported and nothing is called.

The operations of the pickle are run on a stack of their own. A text, a number, a name or another
plain value is `bytes`; all else is a `Node`. What differs from process to process although it means
the same is told here: the items of sets have no order, and the names that cloudpickle gives to
classes, and notebooks to the files of their cells, are left out.
"""

from __future__ import annotations

import hashlib
import pickletools
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Union

Part = Union[bytes, "Node"]
NO_BROADCASTS: Mapping[int, str] = MappingProxyType({})

# Longer plain values count by their digests.
_LEAF_MAX = 1_024
_CLOUDPICKLES = ("cloudpickle.cloudpickle", "pyspark.cloudpickle.cloudpickle")
# Which argument, of how many, is what cloudpickle calls a class by in this process alone.
_TRACKER_PLACES = {
    "_make_skeleton_class": (4, 6),
    "_make_skeleton_enum": (5, 7),
    "_make_typevar": (5, 6),
}
_TRACKER = re.compile(rb"str [0-9a-f]{32}")
# The file of a cell of a notebook, which has the number of the process in it.
_CELL = re.compile(rb"str (.*/ipykernel_\d+/\d+\.py|<ipython-input-.*>)")
# What a class says of itself: that of a dataclass is made of its defaults, sets among them.
_DOC = b"str __doc__"
# Attributes of a class that Python makes of a set; cloudpickle hands the first out as a list.
_MADE_OF_SETS = {b"str _abc_impl", b"str __static_attributes__"}


class UnknownOperationError(Exception):
    """The pickle does something that is not known here."""


class Node:
    """A value that is made of others.

    Attributes
    ----------
    label : bytes
        The operation that made it.
    parts : list of Part
        What it was made of, and what was done to it since, in order.
    items : list of Part
        What it holds in no order.
    constant : bytes or None
        Its plain form if it cannot change and holds nothing that can: who else holds it then means
        nothing.
    """

    __slots__ = ("constant", "items", "label", "parts")

    def __init__(
        self, label: bytes, parts: Iterable[Part] = (), items: Iterable[Part] = ()
    ) -> None:
        self.label = label
        self.parts = list(parts)
        self.items = list(items)
        self.constant: bytes | None = None


class Made(Node):
    """What a pickle makes, below one node.

    Attributes
    ----------
    sets : list of Node
        All that hold items in no order.
    changed : list of Node
        What was handed to calls whose results were thrown away. All of it must be part of what is
        made, as else it is not known what the calls were for.
    """

    __slots__ = ("changed", "sets")

    def __init__(self, parts: Iterable[Part], sets: list[Node], changed: list[Node]) -> None:
        super().__init__(b"made", parts)
        self.sets = sets
        self.changed = changed


def evaluate(pickled: bytes, broadcasts: Mapping[int, str] = NO_BROADCASTS) -> Made:
    """Return what a pickle would make.

    Parameters
    ----------
    pickled : bytes
    broadcasts : mapping of int to str, optional
        What stands for Spark's broadcasts, by the numbers that they have in this process.

    Raises
    ------
    UnknownOperationError
        If there is an operation in it that is not known here.
    Exception
        Whatever comes of bytes that are no pickle.
    """
    named_so = {_leaf(number): content.encode() for number, content in broadcasts.items()}
    return _Machine(named_so).run(pickled)


def constant_of(part: Part) -> bytes | None:
    """Return the plain form of a part, if it has one."""
    return part if isinstance(part, bytes) else part.constant


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Return a digest of plain forms, in order."""
    joined = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hashlib.blake2b(joined, digest_size=16).digest()


def _leaf(value: Any) -> bytes:
    """Return the plain form of a value; equal ones of one type have one."""
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        text = value
    elif isinstance(value, int):
        # Decimal digits of very long numbers are refused.
        text = b"%x" % value
    else:
        text = repr(value).encode()
    kind = type(value).__name__.encode()
    if len(text) > _LEAF_MAX:
        return b"digest of %b %b" % (kind, hashlib.blake2b(text, digest_size=16).digest())
    return b"%b %b" % (kind, text)


def _global(module: bytes, name: bytes) -> bytes:
    return b"global %d %b %b" % (len(module), module, name)


def named(module: str, name: str) -> bytes:
    """Return the plain form of what is found by its name in a module."""
    return _global(_leaf(module), _leaf(name))


_TRACKED = {
    named(module, name): place
    for module in _CLOUDPICKLES
    for name, place in _TRACKER_PLACES.items()
}
_SET_STATE = {named(module, "_class_setstate") for module in _CLOUDPICKLES}
_BUILTIN_TYPES = {named(module, "_builtin_type") for module in _CLOUDPICKLES}
# What PySpark finds broadcasts by.
_BROADCASTS = {
    named(module, "_from_id") for module in ("pyspark.core.broadcast", "pyspark.broadcast")
}
_CODE = {named("types", "CodeType"), named("builtins", "code")}
# Calls whose only argument is a list that has no order.
_OF_UNORDERED = {
    named(module, name)
    for module, name in (
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("__builtin__", "set"),
        ("__builtin__", "frozenset"),
        ("weakref", "WeakSet"),
        ("_weakrefset", "WeakSet"),
    )
}


class _Machine:
    """Runs the operations of one pickle: `_OPERATIONS` says which method does which."""

    def __init__(self, broadcasts: Mapping[bytes, bytes]) -> None:
        self.broadcasts = broadcasts
        self.stack: list[Part] = []
        self.marks: list[int] = []
        self.memo: dict[Any, Part] = {}
        self.thrown_away: list[Part] = []
        self.sets: list[Node] = []
        self.changed: list[Node] = []

    def run(self, pickled: bytes) -> Made:
        end = 0
        for operation, argument, place in pickletools.genops(pickled):
            name, end = operation.name, (place or 0) + 1
            if name in _LEAVES:
                self.stack.append(_leaf(argument))
            else:
                run = _OPERATIONS.get(name)
                if run is None:
                    raise UnknownOperationError(name)
                run(self, name.encode(), argument)
        if len(self.stack) != 1 or end != len(pickled):
            raise UnknownOperationError("STOP")
        return Made([self.stack[0], *self.thrown_away], self.sets, self.changed)

    def skip(self, _name: bytes, _argument: Any) -> None:
        pass

    def mark(self, _name: bytes, _argument: Any) -> None:
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Part]:
        start = self.marks.pop()
        parts = self.stack[start:]
        del self.stack[start:]
        return parts

    def memoize(self, _name: bytes, argument: Any) -> None:
        self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]

    def get(self, _name: bytes, argument: Any) -> None:
        self.stack.append(self.memo[argument])

    def duplicate(self, _name: bytes, _argument: Any) -> None:
        self.stack.append(self.stack[-1])

    def constant(self, name: bytes, _argument: Any) -> None:
        self.stack.append(name)

    def empty(self, name: bytes, _argument: Any) -> None:
        self.stack.append(Node(name))
        if name == b"EMPTY_SET":
            self.sets.append(self.top())

    def bytearray(self, name: bytes, argument: Any) -> None:
        self.stack.append(Node(name, [_leaf(bytes(argument))]))

    def of_mark(self, name: bytes, _argument: Any) -> None:
        self.stack.append(Node(name, self.since_mark()))

    def tuple_of_mark(self, _name: bytes, _argument: Any) -> None:
        self.stack.append(_tuple(self.since_mark()))

    def tuple_of_last(self, name: bytes, _argument: Any) -> None:
        start = len(self.stack) - _LENGTHS[name]
        self.stack[start:] = [_tuple(self.stack[start:])]

    def frozen(self, _name: bytes, _argument: Any) -> None:
        node = Node(b"FROZENSET", items=self.since_mark())
        constants = [one for one in map(constant_of, node.items) if one is not None]
        if len(constants) == len(node.items):
            node.constant = b"frozenset " + digest_of(sorted(constants))
        else:
            self.sets.append(node)
        self.stack.append(node)

    def top(self) -> Node:
        node = self.stack[-1]
        if not isinstance(node, Node) or node.constant is not None:
            raise UnknownOperationError("a constant is changed")
        return node

    def change(self, name: bytes, _argument: Any) -> None:
        start = len(self.stack) - _LENGTHS[name]
        parts = self.stack[start:]
        del self.stack[start:]
        self.top().parts += [b"%b %d" % (name, len(parts)), *parts]

    def change_of_mark(self, name: bytes, _argument: Any) -> None:
        parts = self.since_mark()
        self.top().parts += [b"%b %d" % (name, len(parts)), *parts]

    def add_items(self, name: bytes, _argument: Any) -> None:
        items = self.since_mark()
        node = self.top()
        # A set of the user's own may do anything with the order.
        into, head = (node.items, []) if node.label == b"EMPTY_SET" else (node.parts, [name])
        into += [*head, *items]

    def name_of_line(self, _name: bytes, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(named(module, name))

    def name_of_stack(self, name: bytes, _argument: Any) -> None:
        module, attribute = self.stack[-2:]
        if isinstance(module, bytes) and isinstance(attribute, bytes):
            self.stack[-2:] = [_global(module, attribute)]
        else:
            self.stack[-2:] = [Node(name, [module, attribute])]

    def call(self, name: bytes, _argument: Any) -> None:
        function, arguments = self.stack[-2:]
        self.stack[-2:] = [self.called(name, function, arguments)]

    def call_with_keywords(self, name: bytes, _argument: Any) -> None:
        self.stack[-3:] = [Node(name, self.stack[-3:])]

    def instance(self, name: bytes, argument: Any) -> None:
        self.stack.append(Node(name, [_leaf(argument), *self.since_mark()]))

    def called(self, name: bytes, function: Part, arguments: Part) -> Node:
        if not isinstance(arguments, Node) or arguments.label != b"TUPLE":
            return Node(name + b" with", [function, arguments])
        parts = list(arguments.parts)
        if isinstance(function, Node):
            if _is_type_of_code(function):
                parts = [b"cell" if _is(_CELL, part) else part for part in parts]
        elif function in _TRACKED:
            place, count = _TRACKED[function]
            if len(parts) == count and _is(_TRACKER, parts[place]):
                parts[place] = b"tracker"
        elif function in _OF_UNORDERED and len(parts) == 1:
            (held,) = parts
            if isinstance(held, Node) and held.label in {b"EMPTY_LIST", b"LIST", b"TUPLE"}:
                node = Node(name, [function], held.parts)
                self.sets.append(node)
                return node
        elif function in _BROADCASTS and len(parts) == 1 and isinstance(parts[0], bytes):
            parts = [self.broadcasts.get(parts[0], parts[0])]
        elif function in _CODE:
            parts = [b"cell" if _is(_CELL, part) else part for part in parts]
        return Node(name, [function, *parts])

    def pop(self, _name: bytes, _argument: Any) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.throw_away(self.stack.pop())

    def pop_mark(self, _name: bytes, _argument: Any) -> None:
        for part in self.since_mark():
            self.throw_away(part)

    def throw_away(self, part: Part) -> None:
        """Keep what a call did whose result nobody has: it changed its first argument.

        So cloudpickle fills functions and classes.
        """
        if isinstance(part, Node) and part.label == b"REDUCE" and len(part.parts) > 1:
            function, target, *rest = part.parts
            if isinstance(target, Node) and target.constant is None:
                if function in _SET_STATE:
                    self.without_order(rest)
                target.parts += [b"then", Node(b"CALL", [function, *rest])]
                self.changed.append(target)
                return
        self.thrown_away.append(part)

    def without_order(self, state: list[Part]) -> None:
        """Take the order from attributes of a class that are made of sets."""
        held = state[0] if state else None
        held = held.parts[0] if isinstance(held, Node) and held.label == b"TUPLE" else None
        if not isinstance(held, Node) or held.label != b"EMPTY_DICT":
            return
        for place, key in enumerate(held.parts[:-1]):
            value = held.parts[place + 1]
            if key == _DOC:
                held.parts[place + 1] = b"doc"
            elif key in _MADE_OF_SETS and isinstance(value, Node):
                held.parts[place + 1] = node = Node(b"unordered", items=value.parts)
                self.sets.append(node)


def _tuple(parts: list[Part]) -> Node:
    node = Node(b"TUPLE", parts)
    constants = [one for one in map(constant_of, parts) if one is not None]
    if len(constants) == len(parts):
        node.constant = b"tuple " + digest_of(constants)
    return node


def _is(pattern: re.Pattern[bytes], part: Part) -> bool:
    return isinstance(part, bytes) and pattern.fullmatch(part) is not None


def _is_type_of_code(node: Node) -> bool:
    """Whether a node is what cloudpickle finds the type of code by."""
    function, *arguments = node.parts or [b""]
    return function in _BUILTIN_TYPES and arguments == [b"str CodeType"]


_LENGTHS = {
    b"EMPTY_TUPLE": 0,
    b"TUPLE1": 1,
    b"TUPLE2": 2,
    b"TUPLE3": 3,
    b"APPEND": 1,
    b"SETITEM": 2,
    b"BUILD": 1,
}
_LEAVES = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    }
)
_OPERATIONS: dict[str, Callable[[_Machine, bytes, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _Machine.skip),
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE"), _Machine.constant),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"), _Machine.memoize),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), _Machine.get),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"), _Machine.empty),
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), _Machine.tuple_of_last),
    **dict.fromkeys(("LIST", "DICT", "OBJ"), _Machine.of_mark),
    **dict.fromkeys(("APPEND", "SETITEM", "BUILD"), _Machine.change),
    **dict.fromkeys(("APPENDS", "SETITEMS"), _Machine.change_of_mark),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
    "MARK": _Machine.mark,
    "DUP": _Machine.duplicate,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "TUPLE": _Machine.tuple_of_mark,
    "FROZENSET": _Machine.frozen,
    "ADDITEMS": _Machine.add_items,
    "BYTEARRAY8": _Machine.bytearray,
    "GLOBAL": _Machine.name_of_line,
    "STACK_GLOBAL": _Machine.name_of_stack,
    "NEWOBJ_EX": _Machine.call_with_keywords,
    "INST": _Machine.instance,
}
