"""A Flower app that trains through narrowcast."""
