"""What runs in Spark's Python workers. Nothing here is public."""
