"""The hooks into Spark, one per file. Nothing here is public."""
