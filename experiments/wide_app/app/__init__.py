"""One long vector."""
