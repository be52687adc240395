"""Spark Connect: the driver's side of Clonos, for a client that has none.

::

    client                              the driver's host
    ┌───────────────────┐   gRPC        ┌──────────────┐ py4j  ┌──────────────────────────┐
    │ user's program    │──────────────▶│ Spark's JVM  │◄──────│ host.py: clonos.attach,  │
    │ ConnectSession    │   schema() of │              │       │ the driver's agent       │
    └───────────────────┘   a source ──▶│ planner ─────┼──────▶│ private Unix socket      │
                                        └──────────────┘ ask   └──────────────────────────┘

`asking`
    Requests of a client, which ride in the schema of a data source: Spark plans those on its host.
`answering`
    What that planner does: starts the host process, or asks it.
`gateway`
    Lets the host process into the driver's JVM.
`host`
    The process that attaches to the classic session below, and answers.
`session`
    What `clonos.attach` returns to a client.
"""
