"""Tasks over text, with models of Hugging Face's `transformers`: the extra `narrowcast[text]`.

`Classifier` and `LanguageModel` make a task of any of its models; the other files are the built-in tasks.
"""

from narrowcast.tasks.text.task import Classifier, LanguageModel

__all__ = ["Classifier", "LanguageModel"]
