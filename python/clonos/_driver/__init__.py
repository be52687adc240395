"""What runs on the driver beside the user's program: the session and what it listens to."""
