"""Tasks over text, with models of Hugging Face's `transformers`: the extra `narrowcast[text]`."""
