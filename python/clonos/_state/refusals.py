"""Spark's errors of stateful processors, by its conditions and in its words."""

from __future__ import annotations

from pyspark.errors import PySparkRuntimeError

_STATE = "42802"
_VALUE = "42601"


def refused(doing: str, reason: str) -> PySparkRuntimeError:
    """Return the error of a processor that was `doing` something, such as "getting value"."""
    return PySparkRuntimeError(f"Error {doing}: {reason}")


def handle_state(operation: str, state: str) -> str:
    """Say that the handle may not be used so at this point of a processor's life."""
    return (
        "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform "
        f"stateful processor operation={operation} with invalid handle state={state}. "
        f"SQLSTATE: {_STATE}"
    )


def time_mode(operation: str, mode: str) -> str:
    """Say that there are no timers in this time mode."""
    return (
        "[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to perform "
        f"stateful processor operation={operation} with invalid timeMode={mode} SQLSTATE: {_STATE}"
    )


def ttl_time_mode(state: str, mode: str) -> str:
    """Say that there is no TTL in this time mode."""
    return (
        "[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for "
        f"state={state} in timeMode={mode}, use TimeMode.ProcessingTime() instead. "
        f"SQLSTATE: {_STATE}"
    )


def ttl_not_positive(state: str) -> str:
    """Say that a TTL is below zero."""
    return (
        "[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero "
        f"for State store operation=update on state={state}. SQLSTATE: {_STATE}"
    )


def defined_twice(state: str) -> str:
    """Say that two variables of different kinds have one name."""
    return (
        "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
        f"{state} has already been defined in the StatefulProcessor. SQLSTATE: {_STATE}"
    )


def null_value(state: str) -> str:
    """Say that nothing cannot be a value."""
    return (
        "[ILLEGAL_STATE_STORE_VALUE.NULL_VALUE] Illegal value provided to the State Store Cannot "
        f"write null values to State Store for StateName {state}. SQLSTATE: {_VALUE}"
    )


def empty_list(state: str) -> str:
    """Say that a list cannot be put or appended that has no elements."""
    return (
        "[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State Store "
        f"Cannot write empty list values to State Store for StateName {state}. SQLSTATE: {_VALUE}"
    )


def no_key(state: str) -> str:
    """Say that a variable is used where no key is being handled."""
    return (
        "[INTERNAL_ERROR_TWS] Implicit key not found in state store for "
        f"stateName={state} SQLSTATE: XX000"
    )


def not_initialized(kind: str, state: str) -> str:
    """Say that there is no such variable any more."""
    return f"{kind} state {state} is not initialized."


def exists_already(kind: str, state: str) -> str:
    """Say that a variable was asked for before."""
    return f"{kind} state {state} already exists"


def bad_name(state: str) -> str:
    """Say that a variable cannot have this name."""
    return (
        "[STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME] Failed to perform column family "
        f"operation=create_col_family with invalid name={state}. Column family name cannot be "
        "empty or include leading/trailing spaces or use the reserved keyword=default "
        f"SQLSTATE: {_STATE}"
    )


def reserved_name(state: str) -> str:
    """Say that names of variables do not begin so."""
    return (
        "[STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS] Failed to create column "
        f"family with unsupported starting character and name={state}. SQLSTATE: {_STATE}"
    )
