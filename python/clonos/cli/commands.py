"""The commands of ``clonos``; what each does is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="clonos",
    help="Exactly-once, locally recovered nondeterministic Python on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="What an object store is told that is not in the environment; may be repeated. Others "
        "on this machine see arguments: secrets are better kept in the environment.",
    ),
]


@app.command("demo")
def run_demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and logs.")] = Path(
        "demo-output"
    ),
    keep: Annotated[bool, typer.Option(help="Keep working files.")] = False,
) -> None:
    """Run one job as plain Spark and as Clonos, and kill executors and drivers in both."""
    from clonos.cli.demo import run

    raise typer.Exit(run(out, keep))


@app.command("inspect")
def run_inspect(
    path: Annotated[
        str | None,
        typer.Argument(
            help="A segment, a savepoint or a checkpoint_dir: a path, or a URL of an object store. "
            "Default: running sessions."
        ),
    ] = None,
    storage_option: StorageOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in a log: of a running session, or of files in a checkpoint."""
    from clonos.cli import inspection
    from clonos.errors import ConfigError

    try:
        code = inspection.run(path, storage_option or [], as_json)
    except ConfigError as error:
        typer.echo(error.message, err=True)
        code = 2
    raise typer.Exit(code)


@app.command("doctor")
def run_doctor(
    master: Annotated[
        str | None,
        typer.Option(help="Spark master, or sc:// server, to try; default: checks without Spark."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="Folder, or URL of an object store, meant as checkpoint_dir.")
    ] = None,
    agent_ports: Annotated[
        str | None, typer.Option(help="Ports that agents may have there, such as 40000-40100.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds for all executors to answer there.")] = 120,
    storage_option: StorageOptions = None,
) -> None:
    """Check whether this machine, and a cluster, are ready for Clonos."""
    from clonos._config import parse_ports
    from clonos.cli import checkup
    from clonos.cli.cluster import Asked
    from clonos.cli.location import options_of
    from clonos.errors import ConfigError

    if master is None and agent_ports is not None:
        message = "--agent-ports is for a cluster: give its --master, too"
        raise typer.BadParameter(message)
    try:
        parse_ports(agent_ports)
        options = options_of(storage_option or [])
    except ConfigError as error:
        raise typer.BadParameter(error.message) from error
    if options and "://" not in (checkpoint_dir or ""):
        message = "--storage-option is for an object store: give its URL as --checkpoint-dir"
        raise typer.BadParameter(message)
    cluster = None
    if master is not None:
        cluster = Asked(master, checkpoint_dir, options, agent_ports, wait)
    raise typer.Exit(checkup.run(checkpoint_dir, options, cluster))


@app.command("epochs")
def run_epochs(
    folder: Annotated[
        str, typer.Argument(help="The checkpoint_dir of a session: a folder, or a URL.")
    ],
    *,
    _list: Annotated[bool, typer.Option("--list", help="List the epochs: the default.")] = True,
    drop: Annotated[
        list[str] | None, typer.Option(help="Drop the epoch of this name; may be repeated.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Drop what was last written so long ago: 7d, 12h, 30m.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Drop also what is in use.")] = False,
    storage_option: StorageOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """Show the epochs that were not committed, and drop those that nobody will run again."""
    from clonos.cli import epochs
    from clonos.cli.location import location_of
    from clonos.errors import ClonosError

    try:
        place, location = location_of(folder, storage_option or [])
        asked = epochs.Asked(drop or [], older_than, force, as_json)
        code = epochs.run(place, location, asked)
    except ClonosError as error:
        typer.echo(error.message, err=True)
        code = 2
    raise typer.Exit(code)


@app.command("top")
def run_top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between pictures.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture.")] = False,
) -> None:
    """Show what the sessions of this machine do: rows, calls, and what was not done again."""
    from clonos.cli import top

    raise typer.Exit(top.run(interval, once))
