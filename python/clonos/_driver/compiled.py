"""Java of ours, compiled where it runs: by the compiler that Spark has for its queries.

Nothing is added to Spark's class path, and executors see none of it.

Private names of Spark, seen in 4.1, 4.2 and 4.3: ``org.codehaus.janino.SimpleCompiler``,
``Utils.getSparkClassLoader``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = Path(__file__).parent


def made(spark: SparkSession, name: str, *arguments: Any, uses: tuple[str, ...] = ()) -> Any:
    """Return a new object of a class whose source lies beside this file.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session of the JVM in which it is made.
    name : str
        Name of the class.
    *arguments
        Java objects; the class has one constructor, which takes them.
    uses : tuple of str
        Names of other classes that it uses, each of which may use those before it.
    """
    context: Any = spark.sparkContext
    gateway = context._gateway
    objects = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for place, argument in enumerate(arguments):
        objects[place] = argument
    return _compiled(gateway, (*uses, name)).getConstructors()[0].newInstance(objects)


@functools.cache
def _compiled(gateway: Any, names: tuple[str, ...]) -> Any:
    """Return the last of some classes, one for each JVM: py4j knows classes by their names."""
    jvm = gateway.jvm
    # By the one that has Spark's classes; that of this thread may be another.
    loader = jvm.org.apache.spark.util.Utils.getSparkClassLoader()
    for name in names:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook((_FOLDER / f"{name}.java").read_text(encoding="utf-8"))
        loader = compiler.getClassLoader()
    return loader.loadClass(f"io.clonos.{names[-1]}")
