"""A Flower app that trains a Hugging Face model through narrowcast."""
