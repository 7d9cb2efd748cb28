"""Tasks over text: batches by length, losses and gradients against one sequence at a time, models, files."""

import gzip
import json
import lzma
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

pytest.importorskip("transformers", reason="needs the extra narrowcast[text]")
import transformers

from narrowcast.cli.app import app
from narrowcast.errors import ConfigError
from narrowcast.numerics import pool
from narrowcast.rounds import records
from narrowcast.rounds.local import Local, client_updates
from narrowcast.rounds.task import Batch
from narrowcast.runs import run_folder, runner
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build
from narrowcast.tasks.files import DataError
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.places import data_cache
from narrowcast.tasks.text import models, personachat, sst2, text_lm
from narrowcast.tasks.text.ragged import Ragged, by_length
from narrowcast.tasks.text.task import Classifier, LanguageModel
from narrowcast.tasks.text.tokens import ByteTokens, PretrainedTokens
from narrowcast.tasks.trainable import restrict
from places import SHARED
from text_data import write_checkpoint, write_json, write_lines, write_sst2, write_text

sequences = st.lists(st.lists(st.integers(1, 258), min_size=1, max_size=9), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub, and no data but a test's own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NARROWCAST_DATA", raising=False)


# Batches


@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), st.integers(1, 100))
def test_groups_by_length_hold_every_sequence_once_and_keep_to_the_tokens(
    lengths: list[int], tokens: int
) -> None:
    groups = by_length(np.array(lengths), tokens)
    assert sorted(chain.from_iterable(g.tolist() for g in groups)) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= tokens
    ends = [[lengths[i] for i in g] for g in groups]
    assert all(max(a) <= min(b) for a, b in pairwise(ends))


@given(sequences, st.booleans())
def test_padding_is_zeros_on_one_side(found: list[list[int]], left: bool) -> None:
    index = np.arange(len(found))[::-1].copy()
    ids, mask = Ragged(found).padded(index, left)
    widest = max(map(len, found))
    for row, kept, s in zip(ids.tolist(), mask.tolist(), found[::-1], strict=True):
        room = widest - len(s)
        assert row == ([0] * room + s if left else s + [0] * room)
        assert kept == ([0] * room + [1] * len(s) if left else [1] * len(s) + [0] * room)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        Ragged([[1], []])


# Losses and gradients, against one sequence at a time

TEXTS = ["a", "a rather longer sentence", "of words", "many , many words and still more of them"]


def _gpt2(**more: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=ByteTokens.size, n_embd=32, n_layer=2, n_head=2, n_positions=64, **more
    )
    return transformers.GPT2LMHeadModel(config)


def _lm(module: nn.Module, at_once: int = 64) -> LanguageModel:
    ids = ByteTokens().encode([f"x{text}" for text in TEXTS])
    texts = ids, [len(i) // 2 for i in ids]
    clients = [np.array([0, 1]), np.array([2, 3])]
    return LanguageModel(module, train=texts, test=texts, clients=clients, name="lm", at_once=at_once)


def test_local_steps_by_two_workers_have_the_same_bits() -> None:
    """A module of transformers and its copy, in two threads at once; dropout is off, so nothing is drawn."""
    found = []
    for workers in (1, 2):
        torch.manual_seed(0)
        task, local = _lm(_gpt2()), Local(2, 0, 0.1)
        with pool.using(workers):
            assert not task.draws
            updates = client_updates(task, task.theta0(), [(0, 1), (1, 2)], local, 3)
            found.append([(loss, v.clone()) for loss, v in updates])
            assert len(task.copies()) == workers
    for (loss, v), (same, w) in zip(*found, strict=True):
        assert loss == same
        assert torch.equal(v, w)


class Sums(nn.Module):
    """Classes by the sum of embeddings, and what `beside` does to it in training."""

    def __init__(self, beside: str) -> None:
        super().__init__()
        self.beside, self.words, self.out = beside, nn.Embedding(11, 4), nn.Linear(4, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        h = (self.words(input_ids) * attention_mask[..., None]).sum(1)
        if self.training and self.beside == "draws":
            h = h * torch.rand(len(h), 1)
        if self.training and self.beside == "mixes":
            h = h - h.mean(0)
        if self.training and self.beside == "rounds":  # otherwise in batches of another length
            h = h * (1 + 0.002 * input_ids.shape[1])
        return SimpleNamespace(logits=self.out(h))


@pytest.mark.parametrize(
    ("beside", "bf16", "separable"),
    [
        ("draws", False, False),
        ("mixes", False, False),
        ("mixes", True, False),
        ("rounds", False, False),
        ("rounds", True, True),
        ("nothing", False, True),
    ],
)
def test_clients_share_a_batch_only_where_a_trial_finds_that_they_may(
    beside: str, bf16: bool, separable: bool
) -> None:
    """No layer's type tells what this module does. In few bits a small difference is rounding."""
    torch.manual_seed(0)
    ids = [[1 + (i + j) % 10 for j in range(3 + i // 4)] for i in range(8)]
    texts, clients = (ids, [i % 2 for i in range(8)]), [np.arange(4), np.arange(4, 8)]
    task = Classifier(Sums(beside), train=texts, test=texts, clients=clients, bf16=bf16)
    assert task.separable == separable


def _one_by_one(module: nn.Module, i: int) -> torch.Tensor:
    """The plain twin: one sequence, no padding, all logits."""
    ids = ByteTokens().encode([f"x{TEXTS[i]}"])[0]
    logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    each = nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
    return each[-(len(ids) // 2) :].mean()


@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_a_language_models_gradient_is_the_plain_one(which: str) -> None:
    module = _gpt2() if which == "gpt2" else models.small_llama(TaskOptions(0), 32, 2)[0]
    task = _lm(module)
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4])
    loss, gradient = task.gradient(task.theta0(), Batch(np.arange(4), weight, 0))
    plain = torch.stack([_one_by_one(module, i) for i in range(4)]) @ weight
    expected = torch.autograd.grad(plain, [p for p in module.parameters() if p.requires_grad])
    assert loss == pytest.approx(plain.item(), rel=1e-5)
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-6)
    assert task.loss(task.theta0(), Batch(np.arange(4), weight, 0)) == pytest.approx(loss, rel=1e-6)


def test_perplexity_is_over_all_scored_tokens() -> None:
    module = _gpt2()
    task = _lm(module)
    lengths = [len(ByteTokens().encode([f"x{t}"])[0]) // 2 for t in TEXTS]
    with torch.no_grad():
        total = sum(float(_one_by_one(module, i)) * n for i, n in enumerate(lengths))
    found = task.evaluate(task.theta0())
    assert found["loss"] == pytest.approx(total / sum(lengths), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(total / sum(lengths)), rel=1e-4)


def test_something_must_stand_before_what_is_scored() -> None:
    with pytest.raises(ValueError, match="not its first"):
        LanguageModel(_gpt2(), train=([[1, 2]], [2]), test=([[1, 2]], [1]), clients=[np.arange(1)], name="x")
    with pytest.raises(ValueError, match="train has 1 sequences and 2 numbers"):
        LanguageModel(
            _gpt2(), train=([[1, 2]], [1, 1]), test=([[1, 2]], [1]), clients=[np.arange(1)], name="x"
        )
    with pytest.raises(ValueError, match="beyond the 259 that the model knows"):
        LanguageModel(_gpt2(), train=([[1, 999]], [1]), test=([[1, 2]], [1]), clients=[np.arange(1)])
    with pytest.raises(ValueError, match="client 0 has 2 examples"):
        LanguageModel(_gpt2(), train=([[1, 2]], [1]), test=([[1, 2]], [1]), clients=[np.arange(2)], name="x")


def _bert(options: TaskOptions) -> Classifier:
    module, tokens, _ = models.classifier(options, "tiny", 2)
    texts = Ragged(tokens.classified(TEXTS, 64)), torch.tensor([0, 1, 1, 0])
    return Classifier(module, train=texts, test=texts, clients=[np.arange(4)], name="c", at_once=64)


def test_a_class_that_the_model_does_not_have_is_told() -> None:
    module, tokens, _ = models.classifier(TaskOptions(0), "tiny", 2)
    texts = tokens.classified(TEXTS, 64), [0, 1, 2, 0]
    with pytest.raises(ValueError, match="classes are 0 to 1 for this model, got 2"):
        Classifier(module, train=texts, test=texts, clients=[np.arange(4)])


def test_a_classifiers_gradient_is_the_plain_one() -> None:
    task = _bert(TaskOptions(0))
    weight = torch.full((4,), 0.25)
    loss, gradient = task.gradient(task.theta0(), Batch(np.arange(4), weight, 0))
    losses = []
    for text, label in zip(TEXTS, [0, 1, 1, 0], strict=True):
        scores = task.module(input_ids=torch.tensor(ByteTokens().classified([text], 64))).logits
        losses.append(nn.functional.cross_entropy(scores, torch.tensor([label])))
    expected = torch.autograd.grad(torch.stack(losses) @ weight, list(task.module.parameters()))
    right = sum(loss.item() for loss in losses) / 4
    assert loss == pytest.approx(right, rel=1e-5)
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-6)
    assert task.evaluate(task.theta0())["loss"] == pytest.approx(right, rel=1e-5)


def test_checkpointing_changes_memory_and_not_the_gradient() -> None:
    plain, twice = _bert(TaskOptions(0)), _bert(TaskOptions(0, checkpointing=True))
    batch = Batch(np.arange(4), torch.full((4,), 0.25), 0)
    assert plain.theta0().equal(twice.theta0())
    a, b = plain.gradient(plain.theta0(), batch), twice.gradient(twice.theta0(), batch)
    torch.testing.assert_close(a[1], b[1])
    assert twice.module.is_gradient_checkpointing


def test_bf16_is_near_and_leaves_theta_alone() -> None:
    module = _gpt2()
    task = _lm(module)
    batch = Batch(np.arange(4), torch.full((4,), 0.25), 0)
    loss, gradient = task.gradient(task.theta0(), batch)
    gradient, before = gradient.clone(), task.theta0()
    task._bf16 = True
    near, rough = task.gradient(before, batch)
    assert near == pytest.approx(loss, rel=0.02)
    assert near != loss
    assert rough.dtype == torch.float32
    assert nn.functional.cosine_similarity(rough, gradient, dim=0) > 0.99
    assert task.buffer().equal(before)


def test_dropout_is_off_so_that_a_gradient_is_one() -> None:
    drops = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    batch = Batch(np.arange(4), torch.full((4,), 0.25), 0)
    task = _lm(_gpt2(**drops))
    first = task.gradient(task.theta0(), batch)[1].clone()
    assert task.module.training
    assert task.gradient(task.theta0(), batch)[1].equal(first)
    llama = transformers.LlamaConfig(**models._tiny(TaskOptions(0)), attention_dropout=0.5)
    module = transformers.LlamaForCausalLM(llama)
    _lm(module)
    assert module.model.layers[0].self_attn.attention_dropout == 0.0


@pytest.mark.parametrize("pad", [None, 0, 5])
def test_a_decoder_that_classifies_knows_where_a_sentence_ends(pad: int | None) -> None:
    config = transformers.GPT2Config(
        vocab_size=ByteTokens.size, n_embd=32, n_layer=2, n_head=2, n_positions=64, num_labels=2,
        pad_token_id=pad, eos_token_id=2,
    )  # fmt: skip
    module = transformers.GPT2ForSequenceClassification(config)
    texts = ByteTokens().encode(TEXTS), [0, 1, 1, 0]
    task = Classifier(module, train=texts, test=texts, clients=[np.arange(4)], name="c", at_once=999)
    together = task._scores(task._train, np.arange(4))
    alone = torch.cat([task._scores(task._train, np.array([i])) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_tied_weights_count_once() -> None:
    module = models.small_llama(TaskOptions(0), 32, 2)[0]
    task = _lm(module)
    assert module.lm_head.weight is module.model.embed_tokens.weight
    attention, feed, norms = 4 * 32 * 32, 3 * 32 * 64, 2 * 32
    assert task.layout.size == 259 * 32 + 2 * (attention + feed + norms) + 32
    task.buffer()[0] += 1
    assert module.lm_head.weight.data_ptr() == task.buffer().data_ptr()


def test_what_is_frozen_is_no_part_of_theta_and_costs_no_gradient() -> None:
    whole, part = _bert(TaskOptions(0)), _bert(TaskOptions(0, freeze="embeddings"))
    frozen = [n for n, _ in whole.module.named_parameters() if "embeddings" in n]
    assert set(whole.layout.names) - set(part.layout.names) == set(frozen)
    batch = Batch(np.arange(4), torch.full((4,), 0.25), 0)
    by_name = whole.layout.split(whole.gradient(whole.theta0(), batch)[1])
    for name, g in part.layout.split(part.gradient(part.theta0(), batch)[1]).items():
        torch.testing.assert_close(g, by_name[name])
    assert all(p.grad is None for n, p in part.module.named_parameters() if n in frozen)
    assert set(frozen) < set(part.state_dict(part.theta0()))


@pytest.mark.parametrize(
    ("pattern", "message"), [("(", "no regular expression"), ("zebra", "matches no parameter")]
)
def test_a_wrong_freeze_is_told(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _bert(TaskOptions(0, freeze=pattern))


# Models


def test_a_fresh_model_follows_the_key_alone() -> None:
    torch.manual_seed(1)
    a = _bert(TaskOptions(5)).theta0()
    torch.manual_seed(2)
    assert _bert(TaskOptions(5)).theta0().equal(a)
    assert not _bert(TaskOptions(6)).theta0().equal(a)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A BERT without a head, and its tokenizer, as people keep them."""
    return write_checkpoint(tmp_path / "bert")


def test_a_folder_gives_body_and_tokenizer_and_the_key_the_head(checkpoint: Path) -> None:
    def made(key: int) -> tuple[dict[str, torch.Tensor], Any]:
        module, tokens, _ = models.classifier(TaskOptions(key, model=str(checkpoint)), sst2.MODEL, 2)
        return module.state_dict(), tokens

    torch.manual_seed(1)
    first, tokens = made(1)
    torch.manual_seed(2)
    again, _ = made(1)
    other, _ = made(2)
    assert isinstance(tokens, PretrainedTokens)
    assert tokens.classified(["a longer zebra"], 64) == [[2, 4, 6, 1, 3]]
    assert tokens.classified(["a longer zebra"], 3) == [[2, 4, 3]]
    assert tokens.encode(["a longer"]) == [[4, 6]]
    assert all(first[n].equal(again[n]) for n in first)
    assert {n for n in first if not first[n].equal(other[n])} == {"classifier.weight"}
    assert 0.01 < float(first["classifier.weight"].std()) < 0.03
    assert not first["classifier.bias"].any()


def test_code_in_a_models_folder_is_never_run(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = checkpoint / "ran"
    (checkpoint / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: ...\n")
    config = json.loads((checkpoint / "config.json").read_text())
    parts = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    config |= {"model_type": "evil", "auto_map": dict.fromkeys(parts, "evil.Evil")}
    (checkpoint / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # somebody who says yes to everything
    with pytest.raises(FileNotFoundError, match="cannot be loaded"):
        models.classifier(TaskOptions(0, model=str(checkpoint)), sst2.MODEL, 2)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda data: data[: len(data) // 2]),
        ("model.safetensors", lambda data: b""),
        ("tokenizer.json", lambda data: b"{}"),
        ("config.json", lambda data: data.replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": "x"')),
        ("config.json", lambda data: b"\xff"),
    ],
)
def test_a_damaged_folder_is_told(checkpoint: Path, name: str, damage: Any) -> None:
    path = checkpoint / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FileNotFoundError, match=r"cannot be loaded: .*--model DIR"):
        models.classifier(TaskOptions(0, model=str(checkpoint)), sst2.MODEL, 2)


def test_a_base_of_another_architecture_is_refused_by_its_name(tmp_path: Path) -> None:
    transformers.LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a llama, and training began with a bert"):
        models.load(transformers.BertForSequenceClassification, str(tmp_path), {})


def test_a_base_that_is_not_there_is_given_by_its_own_flag(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--base DIR"):
        models.load(transformers.BertForSequenceClassification, f"{tmp_path}/absent", {})


def test_the_weights_of_another_model_are_refused(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    save_file({"zebra": torch.zeros(3)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match="are not those of a BertForSequenceClassification"):
        models.classifier(TaskOptions(0, model=str(checkpoint)), sst2.MODEL, 2)
    save_file({n: w for n, w in weights.items() if "LayerNorm" not in n}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"LayerNorm\.bias"):
        models.classifier(TaskOptions(0, model=str(checkpoint)), sst2.MODEL, 2)


def test_a_head_for_other_classes_is_told(checkpoint: Path) -> None:
    kind = transformers.AutoModelForSequenceClassification
    kind.from_pretrained(checkpoint, num_labels=3).save_pretrained(checkpoint)
    with pytest.raises(
        ValueError, match=r"trained for something else: classifier\.bias, classifier\.weight have"
    ):
        models.classifier(TaskOptions(0, model=str(checkpoint)), sst2.MODEL, 2)


def test_a_pretrained_model_has_its_own_width(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="leave --width 64 out"):
        models.classifier(TaskOptions(0, model=str(checkpoint), width=64), sst2.MODEL, 2)


@pytest.mark.parametrize("name", ["google-bert/no-such-model", "some/folder/that/is/not/there"])
def test_a_model_that_is_not_there_is_told_with_what_to_do(name: str, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it tries for half a minute
    with pytest.raises(FileNotFoundError, match=r"--model DIR.*narrowcast data minilm"):
        models.classifier(TaskOptions(0, model=name), sst2.MODEL, 2)


def test_a_packaged_model_is_looked_for_where_it_is_fetched_to(checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError, match="To get it: narrowcast data minilm"):
        models.locate("minilm")
    data_cache().mkdir(parents=True)
    checkpoint.rename(data_cache() / "minilm")
    assert models.locate("minilm") == (str(data_cache() / "minilm"), "")


@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_lora_lies_over_a_language_model(which: str) -> None:
    options = TaskOptions(0, trainable="lora", lora_rank=2)
    module = restrict(_gpt2(), options) if which == "gpt2" else models.small_llama(options, 32, 2)[0]
    task = _lm(module)
    assert all("lora_" in name for name in task.layout.names)
    assert not any("lm_head" in name for name in task.layout.names)  # its weights are the embedding's
    _, gradient = task.gradient(task.theta0(), Batch(np.arange(4), torch.full((4,), 0.25), 0))
    assert gradient.abs().sum() > 0


def test_biases_leave_an_embedding_alone_that_is_the_last_layer_too() -> None:
    module = restrict(_gpt2(), TaskOptions(0, trainable="biases"))
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    assert trained
    assert not any("wte" in name or "lm_head" in name for name in trained)


def test_what_is_frozen_gets_no_adapter() -> None:
    options = TaskOptions(0, trainable="lora", freeze=r"layers\.0")
    names = _lm(models.small_llama(options, 32, 2)[0]).layout.names
    assert names
    assert not any("layers.0" in name for name in names)
    with pytest.raises(ValueError, match="leaves no layer"):
        models.small_llama(TaskOptions(0, trainable="lora", freeze="."), 32, 2)


def test_only_text_has_a_choice_of_model() -> None:
    with pytest.raises(ValueError, match=r"model, precision: only the tasks over text \(sst2"):
        build("digits", TaskOptions(0, model="tiny", precision="bf16"))


# SST-2


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, lzma.compress])
def test_sst2_reads_glues_files(tmp_path: Path, pack: Any) -> None:
    folder = write_sst2(tmp_path / "SST-2")
    end = {b"\x1f": ".gz", b"\xfd": ".xz"}.get(pack(b"x")[:1], "")
    for path in list(folder.iterdir()):
        data = pack(path.read_bytes())
        path.unlink()
        path.with_name(f"{path.name}{end}").write_bytes(data)
    task = build("sst2", TaskOptions(0, data=tmp_path, model="tiny", clients=8))
    assert (task.metric, len(task.clients), sum(map(len, task.clients))) == ("accuracy", 8, 80)
    assert len(build("sst2", TaskOptions(0, data=tmp_path, model="tiny")).clients) == 50
    (sentences, labels), (dev, _) = sst2.load(folder)
    assert (sentences[0], labels[0], len(dev)) == ("a dull and empty mess 0", 0, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''"),
        ("sentence,label\n", "begins with"),
        ("sentence\tlabel\n", "no sentences"),
        ("sentence\tlabel\ngood\t2\n", "line 2: needed a sentence, a tab, and 0 or 1"),
        ("sentence\tlabel\n\t1\n", "line 2"),
        ("sentence\tlabel\ngood 1\n", "line 2"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, text: str, message: str) -> None:
    folder = write_sst2(tmp_path)
    (folder / "train.tsv").write_text(text)
    with pytest.raises(DataError, match=message):
        build("sst2", TaskOptions(0, data=folder, model="tiny"))


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    folder = write_sst2(tmp_path)
    (folder / "dev.tsv").unlink()
    (folder / "dev.tsv.xz").write_bytes(b"not xz")
    with pytest.raises(DataError, match=r"dev\.tsv\.xz is not a text file"):
        sst2.load(folder)
    (folder / "dev.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    with pytest.raises(DataError, match="not UTF-8"):
        sst2.load(folder)


def test_absent_data_is_told_with_the_way_to_it() -> None:
    with pytest.raises(FileNotFoundError, match=r"needed: GLUE's SST-2.*To get it: fetch https"):
        build("sst2", TaskOptions(0, model="tiny"))


def test_fewer_examples_and_tests_by_choice(tmp_path: Path) -> None:
    folder = write_sst2(tmp_path)
    options = {"data": folder, "model": "tiny", "clients": 4}
    task = build("sst2", TaskOptions(0, examples=20, test_examples=3, **options))
    assert sum(map(len, task.clients)) == 20
    assert len(task._test[1]) == 3
    held = build("sst2", TaskOptions(0, validation=True, **options))
    assert (sum(map(len, held.clients)), len(held._test[1])) == (72, 8)


def test_a_classifier_learns(tmp_path: Path) -> None:
    task = build("sst2", TaskOptions(0, data=write_sst2(tmp_path, copies=2), model="tiny", clients=2))
    theta, batch = task.theta0(), Batch(np.arange(16), torch.full((16,), 1 / 16), 0)
    for _ in range(100):
        theta = theta - 0.3 * task.gradient(theta, batch)[1]
    assert task.loss(theta, batch) < 0.1


# PersonaChat


@pytest.mark.parametrize("write", [write_json, write_text, write_lines])
def test_all_forms_of_personachat_are_the_same_dialogues(tmp_path: Path, write: Any) -> None:
    train, valid = personachat.load(write(tmp_path))
    assert (len(train), len(valid)) == (24, 12)
    assert train[1] == personachat.Reply(
        ("i have 0 cats.", "i like tea."),
        ("hi , how are you ?", "fine , my 0 cats are too .", "do you work ?"),
        "no 0 .",
    )
    task = build("personachat", TaskOptions(0, data=tmp_path, model="tiny"))
    assert [len(c) for c in task.clients] == [4] * 6  # a client a persona, though it has two dialogues
    assert task.metric == "perplexity"
    assert not task.higher_is_better


def test_replies_are_scored_and_a_long_past_loses_its_start() -> None:
    tokens = ByteTokens()
    reply = personachat.Reply(("i am i.",), ("p" * 10, "q" * 500, "r" * 20), "yes")
    (sequences, scored) = personachat.encode([reply], tokens, 64)
    text = bytes(t - 3 for t in sequences.values.tolist() if t >= 3).decode()
    assert len(sequences.values) == 64
    assert scored == [len(" yes\n")]
    assert text.startswith("Persona: i am i")
    assert text.endswith("\nB: " + "r" * 20 + "\nA: yes\n")
    (whole, _) = personachat.encode([personachat.Reply((), ("hi",), "x")], tokens, 64)
    assert bytes(t - 3 for t in whole.values.tolist()[1:]).decode() == "Persona: \nB: hi\nA: x\n"
    long, counted = personachat.encode([personachat.Reply(("p" * 99,), (), "z" * 99)], tokens, 64)
    assert (long.lengths.tolist(), counted) == ([1 + 15 + 2 + 32], [32])


def test_fewer_personas_by_the_key(tmp_path: Path) -> None:
    folder = write_lines(tmp_path)
    task = build("personachat", TaskOptions(0, data=folder, model="tiny", clients=2))
    assert sorted(chain.from_iterable(c.tolist() for c in task.clients)) == list(range(8))
    assert len(task._train[1]) == 8
    with pytest.raises(ValueError, match="6 natural clients, fewer than 7"):
        build("personachat", TaskOptions(0, data=folder, model="tiny", clients=7))


def test_fewer_replies_of_the_chosen_personas(tmp_path: Path) -> None:
    task = build(
        "personachat", TaskOptions(0, data=write_lines(tmp_path), model="tiny", clients=3, examples=7)
    )
    assert sum(map(len, task.clients)) == len(task._train.number) == 7


def test_validation_holds_out_whole_personas(tmp_path: Path) -> None:
    train, valid = personachat.load(write_lines(tmp_path, personas=20))
    kept, judged = personachat.held_out(TaskOptions(3, validation=True, test_examples=1), train, valid)
    assert len({r.persona for r in judged}) == 2
    assert not {r.persona for r in kept} & {r.persona for r in judged}
    assert len(kept) + len(judged) == len(train)
    assert personachat.held_out(TaskOptions(3), train, valid) == (train, valid)


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    folder = write_sst2(tmp_path)
    (folder / "train.tsv").write_text("sentence\tlabel\r\na\u0085b\u2028c\t1\r\n" * 1, newline="")
    assert sst2.load(folder)[0] == (["a\u0085b\u2028c"], [1])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("personachat_3072.jsonl", "{", "line 1 is not JSON"),
        ("personachat_3072.jsonl", '{"split": "train"}', "line 1 is not what it should be: Object missing"),
        ("personachat_3072.jsonl", '{"split":"x","persona":[],"owner":0,"utterances":["a"]}', "split 'x'"),
        ("personachat_self_original.json", '{"train": ' + "[" * 100_000, "not what it should"),
        ("personachat_self_original.json", "{", "not JSON"),
        (
            "personachat_self_original.json",
            '{"train": [{"personality": 3, "utterances": []}]}',
            "not what it should",
        ),
        ("personachat_self_original.json", '{"train": [], "valid": []}', "no dialogues"),
    ],
)
def test_wrong_dialogues_are_told(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        personachat.load(tmp_path)


def test_wrong_parlai_text_is_told(tmp_path: Path) -> None:
    folder = write_text(tmp_path)
    (folder / "train_self_original.txt").write_text("1 your persona: i am\n2 hello there\n")
    with pytest.raises(DataError, match="line 2: needed an utterance, a tab"):
        personachat.load(folder)
    (folder / "train_self_original.txt").write_text("hello\n")
    with pytest.raises(DataError, match="line 1: needed a number"):
        personachat.load(folder)


# Any text


def test_speeches_are_dealt_by_president(tmp_path: Path) -> None:
    (tmp_path / "speeches").mkdir()
    (tmp_path / "metadata.csv").write_text("fileid,president_id\na,one\nb,two\nc,one\n")
    for name in "abc":
        (tmp_path / "speeches" / f"{name}.txt").write_text(name * 2000)
    assert [*text_lm.load(tmp_path)] == ["one", "two"]
    task = build("text-lm", TaskOptions(0, data=tmp_path, tokens=100, width=32))
    assert [len(c) for c in task.clients] == [36, 18]
    assert len(task._test[1]) == 4 + 2
    assert task._train[0].lengths.tolist() == [101] * 54
    (tmp_path / "metadata.csv").write_text("fileid,president_id\n../../secret,one\n")
    text_lm.load.cache_clear()
    with pytest.raises(DataError, match="without fileid"):
        text_lm.load(tmp_path)


def test_a_folder_of_texts_and_a_single_text(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("über " * 500)
    assert len(build("text-lm", TaskOptions(0, data=tmp_path, width=32)).clients) == 2
    one = tmp_path / "one.txt"
    one.write_text("x" * 200_000)
    assert len(build("text-lm", TaskOptions(0, data=one, width=32)).clients) == 100
    one.write_text("short")
    text_lm.load.cache_clear()
    with pytest.raises(DataError, match="too little text"):
        build("text-lm", TaskOptions(0, data=one, width=32))


def test_a_readme_beside_the_data_is_not_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.txt").write_text("x" * 99)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("x" * 9999)
    monkeypatch.setenv("NARROWCAST_DATA", str(tmp_path))
    assert text_lm.find(TaskOptions(0)) == tmp_path / "text"


def test_text_lm_has_a_model_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="from scratch: leave --model gpt2 out"):
        build("text-lm", TaskOptions(0, data=tmp_path, model="gpt2"))


def test_a_width_that_no_heads_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 9999)
    with pytest.raises(ValueError, match="must fit its 3 heads in even parts, got 97"):
        build("text-lm", TaskOptions(0, data=tmp_path, width=97))


# The real files


@pytest.mark.skipif(not (SHARED / "sst2").exists(), reason="no SST-2 in NARROWCAST_DATA")
def test_the_real_sst2() -> None:
    train, dev = sst2.load(SHARED / "sst2")
    assert (len(train[0]), len(dev[0])) == (67_349, 872)


@pytest.mark.skipif(not (SHARED / "personachat").exists(), reason="no PersonaChat in NARROWCAST_DATA")
def test_the_real_personachat() -> None:
    train, valid = personachat.load(SHARED / "personachat")
    assert [len(set(personachat.owners(part).tolist())) for part in (train, valid)] == [1770, 680]


# What people run


@pytest.mark.parametrize(("task", "write"), [("sst2", write_sst2), ("personachat", write_lines)])
def test_a_tiny_run_from_the_command_resumes_and_exports(tmp_path: Path, task: str, write: Any) -> None:
    def call(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    data, run, again = write(tmp_path / "data"), tmp_path / "run", tmp_path / "again"
    flags = ["--model", "tiny", "--data", data, "--method", "time-varying", "--dim", 32, "--lr", 1]
    flags += ["--clients", 6, "--cohort", 3, "--refresh", 2]
    call("run", task, *flags, "--rounds", 6, "--out", run)
    done = [record.metrics for record in records.read(run / "records.jsonl")]
    assert done[-1]

    def stop(facts: run_folder.Facts, record: records.RoundRecord) -> None:
        if record.round == 3:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        runner.start(run_folder.load_config(run), again, stop)
    runner.resume(again)
    one, other = (runner.rebuild(folder)[1] for folder in (run, again))
    assert one.equal(other)
    call("export", run, "--to", tmp_path / "weights.pt")
    assert torch.load(tmp_path / "weights.pt", weights_only=True)


@pytest.mark.parametrize("more", [[], ["--trainable", "lora", "--lora-rank", 2]], ids=["all", "lora"])
def test_a_run_becomes_a_folder_that_transformers_reads(
    checkpoint: Path, tmp_path: Path, more: list[object]
) -> None:
    data, run, out = write_sst2(tmp_path / "data"), tmp_path / "run", tmp_path / "out"
    flags = [
        "--model",
        checkpoint,
        "--data",
        data,
        "--method",
        "static",
        "--dim",
        32,
        "--lr",
        30,
        "--rounds",
        3,
    ]
    for words in (
        ["run", "sst2", *flags, "--clients", 6, "--cohort", 3, "--out", run, *more],
        ["export", run, "--to", out],
    ):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
    trained, theta = runner.rebuild(run)
    assert not theta.equal(trained.theta0())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert not any("lora" in name for name in model.state_dict())
    tokens = PretrainedTokens(transformers.AutoTokenizer.from_pretrained(out))
    sentences, labels = sst2.load(data)[1]
    held = Ragged(tokens.classified(sentences, 128)), torch.tensor(labels)
    again = Classifier(model, train=held, test=held, clients=[np.arange(len(labels))])
    ours, theirs = trained.evaluate(theta), again.evaluate(again.theta0())
    assert theirs["accuracy"] == ours["accuracy"]
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["out", "out.onnx", "out-v1.1"])
def test_a_folder_is_for_models_of_transformers(tmp_path: Path, name: str) -> None:
    run = runner.start(make_config({"task": "quadratic", "rounds": 1}), tmp_path / "run")
    result = CliRunner().invoke(app, ["export", str(run), "--to", str(tmp_path / name)])
    assert result.exit_code == 2
    assert f"{name}.safetensors or" in result.output.replace("\n", " ")
    assert not (tmp_path / name).exists()


def test_a_sequence_longer_than_the_model_takes_is_said() -> None:
    model, *_ = models.classifier(TaskOptions(0), "tiny", 2)
    long = Ragged([[5] * 513]), torch.tensor([1])
    with pytest.raises(ValueError, match="a sequence has 513 tokens, the model takes 512"):
        Classifier(model, train=long, test=long, clients=[np.arange(1)])


@pytest.mark.parametrize("name", ["./nothere", "/no/where", "~/nothere", "a/b/c"])
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no folder '{name}'"):
        models.locate(name)
