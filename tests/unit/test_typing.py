"""What an editor, or mypy, knows of the public face."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

PROGRAM = """
import clonos
from clonos import causal
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

@causal("boolean", uid="is-even", record="services", flush="call")
def is_even(n: int) -> bool:
    return n % 2 == 0

@causal
def shout(word: str, times: int = 1) -> str:
    return word * times

@causal("string", concurrency=8)
async def ask(question: str, n: int) -> str:
    return question * n

reveal_type(is_even("id"))                    # Column
reveal_type(is_even(sf.col("id"), row_key="id"))  # Column
reveal_type(is_even(4))                       # bool
reveal_type(shout("word", 2))                 # str
reveal_type(ask("why", 2))                    # Coroutine[Any, Any, str]
reveal_type(is_even.with_uid("again")(4))     # bool
reveal_type(clonos.functions.now())           # Column
reveal_type(clonos.call(len, "four"))         # int
reveal_type(clonos.exchange(SparkSession.active().range(3), sf.col("id")))  # DataFrame

is_even("id", 4, 5)                           # error: No overload variant
causal("long", record="everything")           # error: No overload variant
clonos.attach(SparkSession.active(), guarantee="at_most_once")   # error: Argument "guarantee"
clonos.attach(SparkSession.active(), sharing_depth="deep")       # error: Argument "sharing_depth"
"""


def test_types_of_the_public_face(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = str(tmp_path / "cache")
    report, _, _ = api.run([str(program), "--strict", "--cache-dir", folder, "--no-pretty"])
    said: dict[int, str] = {}
    for line, text in re.findall(r"program\.py:(\d+): (?:note|error): (.*)", report):
        said.setdefault(int(line), text)
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        code, _, wanted = line.partition("  # ")
        if not wanted:
            assert number not in said, said[number]
        elif wanted.startswith("error: "):
            assert said[number].startswith(wanted.removeprefix("error: ")), said[number]
        else:
            revealed = re.search(r'"(.*)"', said[number])
            assert revealed, (code, report)
            assert re.sub(r"\b[\w.]+\.(\w+)", r"\1", revealed[1]) == wanted, code
