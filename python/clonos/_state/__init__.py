"""Keyed state: what a user's ``StatefulProcessor`` is given, and the runner of its task."""
