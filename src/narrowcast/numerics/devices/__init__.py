"""Vectors of D numbers on a device: how one is named and found, and passes over them that run there."""
