"""The paper's definition of intrinsic dimension, its three theorems and its proposition, put to the test."""
