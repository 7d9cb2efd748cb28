"""The laboratory beside narrowcast: the paper's tables and figures, its theorems, attacks on uploads."""
