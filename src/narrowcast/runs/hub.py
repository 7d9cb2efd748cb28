"""A model's kilobytes on the Hugging Face hub, with a card that says what they are and how they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from narrowcast import __version__
from narrowcast.extras import require
from narrowcast.runs import modelfile
from narrowcast.runs.bases import HUB_NAME
from narrowcast.runs.modelfile import ModelFile
from narrowcast.units import format_bytes

FILE, CARD = "model.narrowcast", "README.md"
MOST = 1 << 30  # bytes of a file that is fetched


def push_model(path: Path | str, repo: str, *, private: bool | None = None) -> str:
    """Put a model file into the repository "who/name", which is made where there is none; its address.

    The card beside it is written once, and then left alone. Who may write there is huggingface_hub's
    affair: `hf auth login`, or HF_TOKEN.
    """
    path = Path(path)
    model = modelfile.read(path)  # nothing else than a model is sent
    api, hub = _api()
    api.create_repo(repo, private=private, exist_ok=True)
    added = [hub.CommitOperationAdd(FILE, path.read_bytes())]
    if not api.file_exists(repo, CARD):
        added.append(hub.CommitOperationAdd(CARD, card(model, path.stat().st_size, repo).encode()))
    done = api.create_commit(repo, added, commit_message=f"A model of {format_bytes(path.stat().st_size)}")
    return str(done.commit_url)


def pull_model(repo: str, revision: str | None = None) -> Path:
    """The model file of the repository "who/name", fetched or from the cache, and checked to be one."""
    api, hub = _api()
    url = hub.hf_hub_url(repo, FILE, revision=revision, endpoint=api.endpoint)
    size = hub.get_hf_file_metadata(url, token=api.token).size or 0
    if size > MOST:
        raise ValueError(f"{repo}/{FILE} has {size} bytes: a model file of more than {MOST} is not fetched")
    path = Path(api.hf_hub_download(repo, FILE, revision=revision))
    modelfile.read(path)
    return path


def _api() -> tuple[Any, Any]:
    require("huggingface_hub", "hub", "the Hugging Face hub")
    import huggingface_hub

    return huggingface_hub.HfApi(library_name="narrowcast", library_version=__version__), huggingface_hub


def card(model: ModelFile, size: int, repo: str) -> str:
    """What people read on the hub."""
    base, D = model.base, model.layout.size
    on_hub = base.name if "/" in base.name and HUB_NAME.fullmatch(base.name) else ""
    head = ["---", "library_name: narrowcast", *([f"base_model: {on_hub}"] if on_hub else []), "---"]
    words = (
        f"{D:,} parameters, trained by `{model.method}`, as {format_bytes(size)}: the seed of a subspace and "
        f"the coordinates in it. The rest is the base, {modelfile.described(base)}, which a digest checks."
    )
    use = f"""```python
import narrowcast as nc
from narrowcast.runs import pull_model

nc.apply(model, pull_model("{repo}"))  # `model` is the base, loaded in float32
```

or the whole model in a folder or a file:

```
narrowcast pull {repo} --to model.narrowcast
narrowcast export model.narrowcast --to whole.safetensors
```"""
    return "\n".join([*head, "", f"# {repo.partition('/')[2] or repo}", "", words, "", use, ""])
