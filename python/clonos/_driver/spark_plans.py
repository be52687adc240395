"""Python functions in Spark's plans, and what each is asked over.

Private names of Spark, seen in 4.3: ``SQLExecution.getQueryExecution``, ``TreePattern``,
``InlineCTE``, ``EliminateView``, ``ColumnPruning`` and others, ``TreeNode.treeString``,
``HadoopFsRelation.location().allFiles()``, ``IncrementalExecution.runId``,
``StreamExecution.logicalPlan``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from clonos._driver import functions, spark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark cuts off what has more fields than its setting says.
_FIELDS_MAX = 2**31 - 1
# Verbose, no suffixes, all fields, no ids of operators, no indentation.
_TREE_STRING = (True, False, _FIELDS_MAX, False, False)
_FUNCTIONS = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
_SUBQUERIES = {"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"}
# Nodes that choose rows, or put them elsewhere, and leave each as it is.
_OF_ROWS = {
    "Filter",
    "Sort",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "GlobalLimit",
    "LocalLimit",
    "ResolvedHint",
}

# Nodes that move rows about: a program that is started again may do so otherwise.
_CUTS = ("Repartition", "RebalancePartitions")
_MOVES = (*_CUTS, "Sort ")
# Relations of sources that name themselves only.
_WITH_OPTIONS = ("DataSourceV2Relation", "RelationV2")
# Options that are other ones in the next run.
_SECRET = re.compile("secret|password|token|credential|access.?key", re.IGNORECASE)
# How many tasks read a range of numbers.
_SPLITS = re.compile("splits=(Some\\([0-9]+\\)|None)")
# What Spark's ML puts into the names of columns, and what programs put into names of their own.
_RANDOM_OF_STAGES = re.compile("(?<=[A-Za-z]_)(?=[0-9]*[a-f])[0-9a-f]{12}(?![0-9A-Za-z])")
_RANDOM = re.compile(
    "(?<![0-9A-Za-z])([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{8,})(?![0-9A-Za-z])"
)


class PlannedFunction(NamedTuple):
    """A Python function in a plan.

    `pickled` is what Spark sends to a worker, `identity` what is the same of that if the function
    is made again, `over` a hash of its arguments and of the plan below
    it, `tables` one of what the arguments are made of, whichever rows of that; both hashes are of
    use in this process only. A restarted program finds the function again by hashes of 32 bits:
    `exact` is one of the plan as each process has it, `shape` of that without numbers. `data` is
    one of tables that the program made, whose lower half is one of how they are cut.
    """

    pickled: bytes
    identity: str
    over: int
    tables: int
    exact: int
    shape: int
    data: int


class Plans:
    """Finds Python functions in the plans of SQL executions.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session of the application.
    ended : callable
        Returns what is left of a query whose execution is over, if anything is.
    """

    def __init__(self, spark: SparkSession, ended: Callable[[int], Any]) -> None:
        self._java = _Java(spark._jvm)
        self._spark = spark
        self._ended = ended

    def functions(self, execution: int) -> list[PlannedFunction]:
        """Functions in the order in which the analysed plan has them, depth first."""
        query = self._java.execution(execution) or self._ended(execution)
        if query is None:
            return []
        plan = self._stream(query) or query.analyzed()
        walk = _Walk(self._java)
        found = walk.of_plan(plan)
        if not self._java.may_hold(plan):
            # A command that writes has what it writes as an inner child.
            for inner in _each(plan.innerChildren()):
                found += walk.of_plan(inner)
        return found

    def _stream(self, query: Any) -> Any:
        """Return the plan of the stream that an execution is a batch of, or ``None``.

        In a batch's own plan, sources that have nothing new are empty tables: it is another one
        each time, and a restarted program may begin with any.

        Raises
        ------
        LookupError
            If the stream has ended: its batch's plan must not be taken for its next run's.
        """
        if str(query.getClass().getSimpleName()) != "IncrementalExecution":
            return None
        run = str(query.runId())
        for stream in spark_private.active_streams(self._spark):
            if str(stream.runId()) == run:
                return stream.logicalPlan()
        raise LookupError(run)


class _Java:
    """What is looked up in the JVM once: each step of a name is a round trip."""

    def __init__(self, jvm: Any) -> None:
        catalyst = jvm.org.apache.spark.sql.catalyst
        self.identity = jvm.java.lang.System.identityHashCode
        self.byte = jvm.scala.reflect.ClassTag.Byte()
        self._objects = jvm.scala.reflect.ClassTag.Object()
        self._hash = jvm.java.util.Arrays.deepHashCode
        patterns = catalyst.trees.TreePattern
        self._function, self._generator = patterns.PYTHON_UDF(), patterns.GENERATOR()
        self._shared = patterns.CTE()
        self.execution = jvm.org.apache.spark.sql.execution.SQLExecution.getQueryExecution
        self.project = catalyst.plans.logical.Project
        self._unnamed = catalyst.analysis.EliminateSubqueryAliases.apply
        self._unviewed = catalyst.analysis.EliminateView.apply
        optimizer = catalyst.optimizer
        self.simplify = (
            optimizer.ColumnPruning.apply,
            optimizer.CollapseProject.apply,
            optimizer.RemoveNoopOperators.apply,
        )
        self._inline = optimizer.InlineCTE

    def parallelized(self, rdd: Any) -> list[str]:
        """Hashes of the partitions of what a program handed to Spark; none of any other RDD."""
        while rdd.dependencies().size() == 1:
            rdd = rdd.dependencies().apply(0).rdd()
        if not str(rdd.getClass().getName()).endswith("ParallelCollectionRDD"):
            return []
        values = (partition.values() for partition in rdd.partitions())
        return [str(self._hash(part.toArray(self._objects))) for part in values]

    def may_hold(self, node: Any) -> bool:
        """Whether a plan or an expression may have a Python function in it, or a table function."""
        return bool(node.containsPattern(self._function) or node.containsPattern(self._generator))

    def plain(self, plan: Any) -> Any:
        """Return the plan without names of tables: each common table stands where it is used."""
        if plan.containsPattern(self._shared):
            plan = self._inline(True, False, False).apply(plan)
        return self._unnamed(self._unviewed(plan))


class _Below(NamedTuple):
    """Functions of a plan: all, and those by which its rows are made and not only chosen."""

    functions: list[PlannedFunction]
    making: list[PlannedFunction]


class _Walk:
    """A walk through the plan of one execution."""

    def __init__(self, java: _Java) -> None:
        self.java = java
        # By what is equal for two mentions of one function.
        self._known: dict[int, tuple[bytes, str]] = {}

    def of_plan(self, plan: Any) -> list[PlannedFunction]:
        """Functions of a plan and of those below it."""
        return self._of_node(self.java.plain(plan)).functions

    def _of_node(self, plan: Any) -> _Below:
        if not self.java.may_hold(plan):
            return _Below([], [])
        children = list(_each(plan.children()))
        found = [self._of_node(child) for child in children]
        below = _Below(
            [function for child in found for function in child.functions],
            [function for child in found for function in child.making],
        )
        node = _Node(self.java, children, below)
        functions: list[PlannedFunction] = []
        for expression in _each(plan.expressions()):
            functions += self._of_expression(expression, node)
        functions += below.functions
        chooses = str(plan.nodeName()) in _OF_ROWS
        return _Below(functions, below.making if chooses else functions)

    def _of_expression(self, expression: Any, node: _Node) -> list[PlannedFunction]:
        if not self.java.may_hold(expression):
            return []
        inside = [
            function
            for child in _each(expression.children())
            for function in self._of_expression(child, node)
        ]
        name = str(expression.nodeName())
        if name in _SUBQUERIES:
            inside += self.of_plan(expression.plan())
        if name not in _FUNCTIONS:
            return inside
        told = self._told(expression.func())
        return [PlannedFunction(*told, *node.below(expression, inside)), *inside]

    def _told(self, function: Any) -> tuple[bytes, str]:
        number = int(self.java.identity(function))
        if number not in self._known:
            command = functions.pickled(function, self.java.byte)
            self._known[number] = command, functions.identity(function, command)
        return self._known[number]


class _Node:
    """A node with functions: what they are asked over."""

    def __init__(self, java: _Java, children: list[Any], below: _Below) -> None:
        self._java = java
        self._children = children
        self._below = below

    def below(self, function: Any, inside: list[PlannedFunction]) -> tuple[int, int, int, int, int]:
        """Hashes of all below a function; see `PlannedFunction`.

        `inside` are the functions in its arguments.
        """
        arguments = self._arguments(function)
        all_of = [each.identity for each in (*inside, *self._below.functions)]
        making = [each.identity for each in (*inside, *self._below.making)]
        over = _digest(*arguments, *all_of, *self._leaves, *self._texts, *self._hashes)
        tables = _digest(*making, *self._leaves, *self._made_of(function))
        steady = [_without(_CUTS, text) for text in self._texts]
        exact = _digest(*all_of, *self._files, *map(_exact, (*arguments, *steady)))
        # The text has the names of functions.
        unmoved = [_without(_MOVES, text) for text in self._texts]
        shape = _digest(*map(_shape, (*arguments, *unmoved)))
        cut = _digest(*(str(len(table)) for table in self._made)) & 0xFFFF
        data = _digest(*(digest for table in self._made for digest in table)) & ~0xFFFF | cut
        return over, tables, exact % 2**32, shape % 2**32, data % 2**32

    def _arguments(self, function: Any) -> list[str]:
        """Texts of a function's arguments, whose columns are named by their places."""
        texts = [str(argument.sql()) for argument in _each(function.children())]
        columns = [(str(c.sql()), str(c.toString())) for c in _each(function.references().toSeq())]
        # As Spark writes it, a column has the name of its table, which may be another each time.
        for written, numbered in sorted(columns, key=lambda column: -len(column[0])):
            number = re.search("#([0-9]+)L?$", numbered)
            place = self._places.get(number[1]) if number else None
            name = numbered.partition("#")[0]
            texts = [text.replace(written, f"{name}@{place}") for text in texts]
        return texts

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        """Place of each column below, by its number."""
        columns = [str(child.output().toString()) for child in self._children]
        numbers = re.findall("#([0-9]+)", " ".join(columns))
        return {number: place for place, number in enumerate(numbers)}

    @functools.cached_property
    def _texts(self) -> list[str]:
        return [self._text(child) for child in self._children]

    @functools.cached_property
    def _hashes(self) -> list[str]:
        """What the text of an expression leaves out. A function has another one each time."""
        return [] if self._below.functions else _hashes(self._children)

    @functools.cached_property
    def _tables(self) -> list[Any]:
        return [leaf for child in self._children for leaf in _each(child.collectLeaves())]

    @functools.cached_property
    def _locations(self) -> list[Any]:
        found = []
        for leaf in self._tables:
            if str(leaf.nodeName()) == "LogicalRelation":
                with contextlib.suppress(Exception):
                    found.append(leaf.relation().location())
        return found

    @functools.cached_property
    def _files(self) -> list[str]:
        """What is read, of tables whose text does not tell: folders, and options of sources."""
        found = [str(location.rootPaths().toString()) for location in self._locations]
        for leaf in self._tables:
            if str(leaf.nodeName()).startswith(_WITH_OPTIONS):
                with contextlib.suppress(Exception):
                    options = leaf.options().asCaseSensitiveMap()
                    names = sorted(str(name) for name in options.keySet())
                    shown = [name for name in names if not _SECRET.search(name)]
                    found += [f"{name}={options.get(name)}" for name in shown]
        return found

    @functools.cached_property
    def _made(self) -> list[list[str]]:
        """Hashes of tables that the program made, by the tasks that read them."""
        found = []
        for leaf in self._tables:
            with contextlib.suppress(Exception):
                name = str(leaf.nodeName())
                if name == "LocalRelation":
                    found.append([str(leaf.data().hashCode())])
                elif name == "LogicalRDD":
                    found.append(self._java.parallelized(leaf.rdd()))
        return found

    @functools.cached_property
    def _listings(self) -> list[str]:
        """Files, with their lengths and times."""
        found = []
        for location in self._locations:
            with contextlib.suppress(Exception):
                listed = str(location.allFiles().toString())
                found.append(re.sub("access_time=[0-9]+", "", listed))
        return found

    @functools.cached_property
    def _leaves(self) -> list[str]:
        """Tables of one shape are told apart by hashes, and files by when they were written."""
        return [*_hashes(self._tables), *self._listings]

    @functools.cached_property
    def _rows(self) -> Any:
        """Return the only child, without what chooses among its rows."""
        plan = self._children[0]
        while str(plan.nodeName()) in _OF_ROWS:
            plan = plan.children().apply(0)
        return plan

    def _made_of(self, function: Any) -> list[str]:
        """Spark adds columns to plans that others are built on: those do not count."""
        if len(self._children) != 1:
            return self._texts
        plan = self._java.project(function.references().toSeq(), self._rows)
        for simplify in self._java.simplify:
            plan = simplify(plan)
        return [self._text(plan)]

    def _text(self, plan: Any) -> str:
        """Return a plan as text, with all of its columns."""
        # Canonical plans have the sides of `>` and `+` in the order of their hashes, and a Python
        # function has another hash each time.
        named = self._java.may_hold(plan)
        text = str((plan if named else plan.canonicalized()).treeString(*_TREE_STRING))
        if named:
            numbers: dict[str, int] = {}
            text = re.sub(
                "#([0-9]+)",
                lambda found: f"#{numbers.setdefault(found[1], len(numbers))}",
                text,
            )
        # The addresses of objects, of what has no text.
        return re.sub(r"@[0-9a-f]+", "@", text)


def _exact(text: str) -> str:
    """Return what is left without what says how many tasks there are."""
    return _RANDOM_OF_STAGES.sub("", _SPLITS.sub("", text))


def _shape(text: str) -> str:
    """Return what is left without numbers and random names."""
    return re.sub("[0-9]+", "", _RANDOM.sub("", text))


def _without(kinds: tuple[str, ...], text: str) -> str:
    return "\n".join(node for node in _nodes(text) if not node.startswith(kinds))


def _nodes(text: str) -> Iterator[str]:
    # Spark marks nodes whose inputs are not below them, as in canonical plans with aliases.
    return (line.lstrip(" :+-!'") for line in text.splitlines())


def _hashes(plans: list[Any]) -> list[str]:
    return [str(plan.semanticHash()) for plan in plans]


def _digest(*parts: str) -> int:
    known = hashlib.blake2b(digest_size=8)
    for part in parts:
        known.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return int.from_bytes(known.digest(), "little")


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))
