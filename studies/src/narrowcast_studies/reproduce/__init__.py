"""The paper's tables and figures, each from one file of settings: `narrowcast reproduce NAME`."""
