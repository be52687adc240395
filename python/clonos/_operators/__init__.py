"""Operators as the user makes them, on the driver. Names without underscore are public."""
