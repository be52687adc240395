"""``@causal``: a PySpark function whose outcomes are recorded once and replayed whatever fails."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from clonos import _attached, _services
from clonos._asks import asks_for_keys
from clonos._calls import Calls, signature_of, telling_of_setup
from clonos._code import fingerprint, label
from clonos._config import Flush, OnError, Per, Record
from clonos._operators.binding import Binding, bind_columns, name_columns
from clonos._operators.columns import is_client, is_registering, udf_class
from clonos._operators.declaration import (
    ASYNC,
    ROW,
    check_recordable,
    check_type,
    declaration_of,
    hook_registration,
    is_udtf,
    read_ahead,
    session_conf,
)
from clonos._operators.groups import AGGREGATES
from clonos._operators.options import Options, check_seen, refused
from clonos._operators.places import in_task, no_session, warn_unrecorded
from clonos._uses import check_uid, new_use

if TYPE_CHECKING:
    import tenacity
    from pyspark.sql import Column, SparkSession
    from pyspark.sql._typing import DataTypeOrString
    from pyspark.sql.types import DataType
    from pyspark.sql.udtf import UserDefinedTableFunction

    from clonos._operators.options import CausalOptions
    from clonos._operators.udtf import CausalUDTF
    from clonos._worker.pieces import Pieces
    from clonos._worker.udf import UdfSpec

P = ParamSpec("P")
R = TypeVar("R")
ColumnOrName = Any
# More columns than any function is given: all of them are its arguments.
ALL_ARGUMENTS = 2**31
# Places in SQL whose functions are remembered; each holds what the function holds.
SQL_PLACES_MAX = 64
# Of a callable object there is a name of its class only, as PySpark has it.
_NAMES = ("__name__", "__module__")


class CausalUDF(Generic[P, R]):
    """A causal function; made by `causal`, called like any PySpark UDF.

    Called with columns, or names of columns, where a Spark session is active, it makes a column.
    With other values, in a Python worker, and where there is no Spark, it is the function it wraps.
    Its attributes are those of PySpark's UDFs, of the kind that was declared; what Spark runs is
    always an iterator over Arrow batches, and nondeterministic unless equal arguments have one
    answer (``per="value"``).

    Attributes
    ----------
    func : callable
        The plain function.
    deterministic : bool
        What the wrapped UDF says. To Catalyst a causal function is so with ``per="value"`` only.
    """

    _is_adopted = False
    # Whether all that it does is to draw random numbers: there is nothing to pay twice for.
    _draws = False

    def __init__(
        self, fn: Callable[P, R], return_type: DataTypeOrString | None, options: Options
    ) -> None:
        self.__wrapped__: Callable[..., Any]
        declared = declaration_of(fn, return_type)
        options.check(declared.kind)
        self._calls = Calls.parse(declared.kind, options.record, **options.calls)
        self.func = declared.func
        self.deterministic = declared.deterministic
        self._declared = declared
        if not no_session():
            read_ahead(declared.declared_type)
        self._options = options
        names = tuple(a for a in functools.WRAPPER_ASSIGNMENTS if a not in _NAMES)
        functools.update_wrapper(self, declared.func, assigned=names)
        self.__name__ = declared.name
        self.__module__ = getattr(declared.func, "__module__", type(declared.func).__module__)
        self._qualname: str = getattr(declared.func, "__qualname__", declared.name)
        # PySpark asks `inspect.getfullargspec` what a function of groups takes.
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = signature_of(declared.func, self._calls)
        # In a worker: what records the groups of a task, where Spark calls this for groups.
        self._groups: Pieces | None = None

    @property
    def uid(self) -> str:
        """Stable name of the operator: the one given, else the function's qualified name."""
        return self._options.uid or f"{self.__module__}.{self._qualname}"

    def __getstate__(self) -> dict[str, Any]:
        # A function that calls this one travels to a worker with it.
        return self.__dict__ | {"_groups": self._pieces()}

    def _pieces(self) -> Pieces | None:
        """What a worker needs to record groups, if this is used where PySpark takes a function."""
        from clonos._worker.pieces import Pieces

        if _attached.current_config() is None:
            if not in_task() and not no_session():
                warn_unrecorded(self.uid, stacklevel=4)
            return self._groups
        spec = self._spec(return_type=None, arguments=ALL_ARGUMENTS, keyed=False)
        return Pieces(replace(spec, count_occurrences=True))

    def _copy(self, **changes: Any) -> CausalUDF[P, R]:
        # Not `copy.copy`, which goes the way of pickles.
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__ | {"_groups": None} | changes)
        return new

    def with_uid(self, uid: str) -> CausalUDF[P, R]:
        """Return the same function as another operator, under a name that outlives renaming."""
        check_uid(uid)
        return self._copy(_options=replace(self._options, uid=uid))

    def __repr__(self) -> str:
        options = self._options
        return f"<causal {self._declared.kind} function {self.uid!r}, record={options.record!r}>"

    @overload
    def __call__(
        self,
        *args: Column | str,
        row_key: ColumnOrName | Sequence[ColumnOrName] | None = None,
        **kwargs: Column | str,
    ) -> Column: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __call__(
        self,
        *args: Any,
        row_key: ColumnOrName | Sequence[ColumnOrName] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Column of the function over `args`, or the plain call.

        Parameters
        ----------
        *args, **kwargs
            Columns, or names of columns, as for any UDF: a call in which each argument is a name,
            or one is a column, makes a column. ``f(4)`` is the plain call; so is any call where
            there is no Spark session. Defaults of the function are values.
        row_key : column, name, "*", or a list of them, optional
            Columns that tell rows with equal arguments apart. They are not passed to the function.
            Needed where such rows may come back in another order, that is after a shuffle, and
            nothing that is read above the function tells. ``"*"`` stands for all columns.
        """
        if in_task():
            if self._groups is not None and not kwargs and not _services.in_scope():
                from clonos._worker import groups

                if groups.is_group(args):
                    return groups.call_group(self._groups, self.func, args)
            return _services.call(self.func, *self._client(), *args, **kwargs)
        if no_session() or (row_key is None and not name_columns([*args, *kwargs.values()])):
            if self._is_adopted and not no_session():
                # Spark has its own word for what is no column.
                return self._declared.plain(self.__name__)(*args, **kwargs)
            return _services.call(self.func, *self._client(), *args, **kwargs)
        binding = bind_columns(args, kwargs, row_key)
        with telling_of_setup(self.uid):
            return self._udf(binding)(*binding.columns)

    def _client(self) -> tuple[Any, ...]:
        return () if self._calls is None else self._calls.client()

    def _is_value(self, arguments: int, keyed: bool) -> bool:
        """Whether a use has one answer per distinct argument."""
        per, declared = self._options.per, self._declared
        if per is None:
            # What PySpark has as deterministic has equal answers for equal arguments, it is said.
            by_declaration = declared.row_eval_type is not None and self.deterministic
            is_recorded = self._options.record == "result"
            # Others are refused, which a program that knows of Spark alone must not be.
            is_seen = not self._is_adopted or fingerprint(self.func).unseen is None
            return by_declaration and is_recorded and arguments > 0 and not keyed and is_seen
        if per == "value" and (keyed or not arguments):
            what = "row_key= tells rows with equal arguments apart" if keyed else "no arguments"
            refused(f"per='value' is one answer for equal arguments, but {what}: use per='row'")
        return per == "value"

    @property
    def returnType(self) -> DataType:
        """Spark type of a result.

        Raises
        ------
        PySparkNotImplementedError
            If functions of this kind cannot return the declared type.
        """
        declared = self._declared.return_type()
        return declared if self._calls is None else self._calls.answer_type(declared)

    @property
    def evalType(self) -> int:
        """Spark's number for the kind of UDF that was declared."""
        if is_registering():
            # It knows of causal functions when Clonos is attached, and would take the plain one.
            refused(f"register {self.uid} after clonos.attach(spark): it would not be recorded")
        return self._declared.eval_type()

    def asNondeterministic(self) -> CausalUDF[P, R]:
        """Return this function declared nondeterministic, with an answer for each row."""
        return self._copy(deterministic=False, _options=replace(self._options, per="row"))

    def register(self, spark: SparkSession, name: str) -> CausalUDF[P, R]:
        """Make this function a SQL function of `spark`, as ``spark.udf.register`` does.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            One of Spark Connect takes functions with one answer per value.
        name : str
            Name in SQL.

        Returns
        -------
        CausalUDF
            The same function under that name.

        Raises
        ------
        ConfigError
            If it has an answer for each row, and `spark` is a session of Spark Connect.
        """
        from clonos._operators.columns import register_function

        named = self._copy(__name__=name)
        if is_client(spark):
            shown = named._of_any_place()
            # By which the next attach knows what it has to register anew.
            shown.causal = self
            spark.udf.register(name, shown)
            return named
        made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

        def call(place: str, /, *args: Column, **kwargs: Column) -> Column:
            binding = bind_columns(args, kwargs, None)
            config = _attached.current_config()
            attached = None if config is None else config.to_bytes()
            of = (place, binding.shape, attached, session_conf())
            with telling_of_setup(named.uid):
                made[of] = function = made.get(of) or named._udf(binding)
                made.move_to_end(of)
                if len(made) > SQL_PLACES_MAX:
                    made.popitem(last=False)
                column: Column = function(*binding.columns)
            return column

        names = not self._declared.kind.endswith("_iter")
        register_function(spark, name, call, self._declared.plain(name), names)
        return named

    def _body(self, binding: Binding, returned: DataType) -> Callable[..., Any]:
        from clonos._worker.groups import make_aggregate
        from clonos._worker.udf import make_body

        spec = self._spec(
            per="value" if self._is_value(binding.arguments, binding.keyed) else "row",
            return_type=returned,
            arguments=binding.arguments,
            keyed=binding.keyed,
            keywords=binding.keywords,
            types=binding.types,
            pickled=self._declared.pickled(),
            draws=self._draws,
            conf=session_conf(),
        )
        if spec.config is None:
            warn_unrecorded(self.uid, stacklevel=5)
        make = make_aggregate if self._declared.kind in AGGREGATES else make_body
        return make(spec, self.func)

    def _spec(self, **of_use: Any) -> UdfSpec:
        from clonos._worker.udf import UdfSpec

        config = _attached.current_config()
        options, kind = self._options, self._declared.kind
        shared = of_use.get("per") == "value"
        code, unseen = fingerprint(self._with_options(), options.code_version)
        if shared:
            check_seen(self.uid, unseen)
        return UdfSpec(
            use=new_use(self.uid, code, named=options.uid is not None, shared=shared),
            kind=kind,
            record=options.record,
            flush=options.flush,
            concurrency=options.concurrency,
            allow_code_change=options.allow_code_change,
            # It costs time, and only keys need it.
            count_occurrences=kind in {ROW, ASYNC, *AGGREGATES}
            and asks_for_keys(self.func, options.calls.get("setup")),
            label=label(self._qualname, self.func, options.code_version),
            calls=self._calls,
            config=None if config is None else config.to_bytes(),
            **of_use,
        )

    def _with_options(self) -> Callable[..., Any]:
        """Return the function with what else decides about its answers."""
        calls = self._options.calls
        setup, on_error = calls.get("setup"), calls.get("on_error", "raise")
        is_plain = setup is None and on_error == "raise"
        return self.func if is_plain else functools.partial(self.func, setup, on_error)

    def _of_any_place(self) -> Any:
        """Return the function for a server that calls it wherever its name stands in SQL."""
        if not self._is_value(ALL_ARGUMENTS, keyed=False):
            refused(
                f"{self.uid} has an answer for each row, and over Spark Connect nothing tells the "
                "places in SQL apart at which it is called: use it as a column, or per='value'"
            )
        return self._udf(Binding((), ALL_ARGUMENTS, (), keyed=False, types=()))

    def _udf(self, binding: Binding) -> Any:
        returned = self.returnType
        check_recordable(returned, self.uid)
        is_value = self._is_value(binding.arguments, binding.keyed)
        # One for each call: what Spark pickles says which use it is, and equal pickles are one UDF.
        function = udf_class()(
            self._body(binding, returned),
            returnType=returned,
            name=self.__name__,
            evalType=self._declared.run_eval_type(),
            deterministic=is_value,
        )
        if (session := _attached.current()) is not None and self._declared.kind not in AGGREGATES:
            by_row = not (is_value or binding.keyed)
            by_row &= self._options.record == "result" or self._draws
            session.mark_rows(function, takes_marks=by_row)
        return function


class Decorator(Protocol):
    """What ``causal(…)`` makes: to be put on a function, or on a table function."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a table function can be called, too
        self, fn: UserDefinedTableFunction, /
    ) -> CausalUDTF: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> CausalUDF[P, R]: ...


@overload
def causal(
    f: Callable[P, R],
    returnType: DataTypeOrString | None = None,
    **options: Unpack[CausalOptions],
) -> CausalUDF[P, R]: ...
@overload
def causal(
    f: DataTypeOrString | None = None,
    returnType: DataTypeOrString | None = None,
    **options: Unpack[CausalOptions],
) -> Decorator: ...
def causal(
    f: DataTypeOrString | Callable[..., Any] | None = None,
    returnType: DataTypeOrString | None = None,
    *,
    uid: str | None = None,
    record: Record = "result",
    per: Per | None = None,
    concurrency: int = 1,
    flush: Flush = "auto",
    allow_code_change: bool = False,
    code_version: str | None = None,
    retries: int | tenacity.BaseRetrying = 0,
    on_error: OnError = "raise",
    rate_limit: str | None = None,
    timeout: float | None = None,
    setup: Callable[[], Any] | None = None,
) -> Any:
    """Make a function causal: Spark may run it again, its answers stay the first ones.

    Goes on a plain function, an ``async def``, a ``pandas_udf`` or ``arrow_udf`` (scalar, iterator
    or aggregate), or a ``udtf``. What it makes is used as that is, also in SQL, and a causal
    function is taken by ``applyInPandas``, ``applyInArrow``, ``mapInPandas`` and ``mapInArrow``.

    Parameters
    ----------
    f : callable, optional
        The function; without it, this is a decorator. As in ``udf``, the type may stand here.
    returnType : pyspark.sql.types.DataType or str, optional
        Spark type of a result, as in ``udf``; default ``"string"``, or what a wrapped one says.
    uid : str, optional
        Stable name of the operator. Its log is found by it after a restart, so choose one that
        survives renaming; default: the function's qualified name.
    record : {"result", "services"}
        ``"result"``: results are recorded and the function is not called at replay.
        ``"services"``: the function runs again at replay, and only what it took from the causal
        services (`clonos.time`, `clonos.random`, `clonos.call`, …) is recorded.
    per : {"row", "value"}, optional
        ``"row"``: each row has an answer of its own, the same at every replay. ``"value"``: rows
        with equal arguments have one answer in all of an epoch, which is asked for once, whatever
        task comes first; the others wait for it. Then the function is deterministic to Spark, and
        may stand in join conditions and next to aggregates. Default: ``"row"``, but ``"value"``
        for a `pyspark.sql.functions.udf` of one row that was not made ``asNondeterministic()``.
    concurrency : int
        Calls of an ``async def`` under way at a time, per task.
    flush : {"auto", "batch", "call"}
        What is made stable together: ``"batch"``, an Arrow batch; ``"auto"``, that, and in one
        that takes long each second's answers; ``"call"``, every call on its own.
    allow_code_change : bool
        Replay a log although the function's code changed since it was recorded.
    code_version : str, optional
        Your name for this version of the function. By default a function has changed when its code
        has, or anything that it refers to: closures, defaults, globals, helpers and classes of your
        own, the state of an instance. With a version, only another version is a change, and
        functions of one ``uid`` and version share their answers with ``per="value"``.
    retries : int or tenacity.Retrying
        Further tries after an exception, with back-off; or what `tenacity` says.
    on_error : {"raise", "null", "record"}
        What an exception is after the last try: a failure, a null, or the `error` of a struct.
    rate_limit : str, optional
        Calls per time of the whole application, such as ``"100/s"`` or ``"60/min"``, spread evenly.
    timeout : float, optional
        Seconds that one try of an ``async def`` may take.
    setup : callable, optional
        Makes the function's first argument, such as a client: once in each worker process, for an
        ``async def`` inside its event loop. Closed at the end by its ``close()`` or ``aclose()``.

    Returns
    -------
    CausalUDF, CausalUDTF of a table function, or a decorator that makes one

    Raises
    ------
    ConfigError
        If options do not go together.

    Notes
    -----
    The method is causal logging as in Silvestre et al., *Clonos: Consistent Causal Recovery for
    Highly-Available Streaming Dataflows*, SIGMOD 2021.

    Examples
    --------
    >>> from clonos import causal
    >>> @causal("boolean", uid="is-even")
    ... def is_even(n: int) -> bool:
    ...     return n % 2 == 0
    >>> is_even(4)  # no Spark session: the plain function
    True
    """
    limits = {"rate_limit": rate_limit, "timeout": timeout}
    calls = {"retries": retries, "on_error": on_error, "setup": setup, **limits}
    options = Options(uid, record, per, concurrency, flush, allow_code_change, calls, code_version)
    is_decorator = not callable(f) and not is_udtf(f)
    declared: Any = f if is_decorator and returnType is None else returnType
    check_type(declared)
    if is_decorator:
        return lambda fn: _causal(fn, declared, options)
    return _causal(f, declared, options)


def _causal(fn: Any, declared: DataTypeOrString | None, options: Options) -> Any:
    if is_udtf(fn):
        from clonos._operators.udtf import causal_udtf

        return causal_udtf(fn, declared, options)
    if isinstance(fn, CausalUDF):
        name = fn.__name__
        if fn._is_adopted:
            plain: Any = replace(fn._declared, declared_type=declared or fn._declared.declared_type)
            return CausalUDF(plain, None, options)
        refused(f"{name} is causal already: give causal() the plain function, {name}.func")
    # `int` and `str` are functions to whoever maps with them.
    if isinstance(fn, type) and (hasattr(fn, "eval") or "__call__" in vars(fn)):
        refused(
            f"{fn.__qualname__} is a class: for a table function write @causal above "
            "@udtf(returnType=…); for a class whose instances can be called give an instance"
        )
    return CausalUDF(fn, declared, options)


# Not once one is made: `spark.udf.register(name, causal(fn))` has looked for it before.
hook_registration(CausalUDF)
