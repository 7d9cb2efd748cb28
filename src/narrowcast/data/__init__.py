"""What the tasks read: what it is, where it is, and how package registries' tools fetch it."""
