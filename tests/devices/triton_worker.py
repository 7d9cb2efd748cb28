"""What test_triton.py runs in processes of their own: Triton is an interpreter or a compiler, as the
environment says when it is imported.

    TRITON_INTERPRET=1 python triton_worker.py interpret    python triton_worker.py compile [n ...]
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from narrowcast.numerics.devices import by_torch, by_triton, passes
from narrowcast.numerics.kernels.gpu import EXACT, digest, tiles
from narrowcast.subspaces import on_device
from narrowcast.subspaces.base import add_family
from narrowcast.subspaces.rotation import SCALES
from narrowcast.subspaces.table import subspace

TABLE = [  # every n from 1 to 64, whole strips and cut ones, windows that wrap, remainders, several subspaces
    ("rotation", 5000, 64, 1), ("rotation", 130, 128, 2), ("rotation", 5003, 300, 2),
    ("rotation", 700, 699, 1), ("rotation", 9000, 1030, 1), ("rotation", 9001, 2050, 1),
    ("rotation", 4096, 4096, 1), ("rotation", 4097, 4097, 1), ("rotation", 4096 * 3 + 2711, 5000, 3),
    ("grouping", 4161, 100, 2),
]  # fmt: skip
TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)]


def interpret() -> list[dict[str, Any]]:
    by_triton.BAND = 2 * 4096  # several bands of a line
    passes.on = lambda device, V=64: by_triton  # type: ignore[assignment,return-value]
    rows = []
    for kind, D, d, K in TABLE:
        rng = torch.Generator().manual_seed(D + d)
        family = [subspace(kind, D, d, 12345678901234567 + 999 * k) for k in range(K)]
        base, xs, g = (torch.randn(*s, generator=rng) for s in ((D,), (K, d), (D,)))
        base[:9:3], base[1::7], xs[0, : d // 2 : 5] = -0.0, 1e-42, 3e-41
        out, A = torch.empty(D), family[0]
        on_device.add_family(family, base, xs, out, SCALES)
        want, near, exact = add_family(family, base, xs), on_device.project(A, g, SCALES), A.project(g)
        half = on_device.project(A, g.bfloat16(), SCALES)
        rows.append({
            "case": f"{kind} {D} {d} {K}",
            "n": A.n,
            "same": torch.equal(out.view(torch.int32), want.view(torch.int32)),
            "error": float((near - exact).norm() / exact.norm()),
            "half": float((half - A.project(g.bfloat16().float())).norm() / exact.norm()),
        })  # fmt: skip
    for size, first in ((0, 7), (1, -3), (2049, 0), (5000, 1 << 33)):
        pairs = torch.from_numpy(
            np.random.default_rng(size).integers(-(2**63), 2**63 - 1, size, dtype=np.int64)
        )
        made, mask = by_triton.sum_mixed(pairs, first), (1 << 64) - 1
        same = made & mask == by_torch.sum_mixed(pairs, first) & mask
        rows.append({"case": f"digest {size} {first}", "same": same, "error": 0.0, "half": 0.0})
    return rows


def compiled(sizes: list[int]) -> list[dict[str, Any]]:
    """Registers, spills and instructions of each kernel, and what must not be in its code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    rows = []
    for kernel, constants, options, g in [
        (tiles.fold, {"BLOCK": by_triton.BLOCK}, {}, "fp32"),
        (digest.sum_mixed, {"BLOCK": by_triton.PAIRS}, {}, "fp32"),
        *((kernel, {"n": n}, EXACT, "fp32") for n in sizes for kernel in (tiles.expand, tiles.rotate)),
        *((tiles.rotate, {"n": 64}, EXACT, g) for g in ("bf16", "fp16") if 64 in sizes),
    ]:
        signature = {name: _kind(kernel, name) for name in kernel.arg_names}
        signature |= {"g": f"*{g}"} if "g" in signature else {}
        pointers = [k for k, kind in enumerate(signature.values()) if kind.startswith("*")]
        source = ASTSource(kernel, signature, constants, {(k,): [["tt.divisibility", 16]] for k in pointers})
        for target in TARGETS:
            made = triton.compile(source, target=GPUTarget(*target), options=options)
            row = {"case": f"{kernel.__name__} {constants} {g}", "target": str(target[1])}
            row["fused"] = re.findall(r"llvm\.fma|fmuladd|contract|reassoc|\bfast\b", made.asm["llir"])
            rows.append(row | (_nvidia(made) if target[0] == "cuda" else _amd(made)))
    return rows


def _kind(kernel: Any, name: str) -> str:
    if name in ("n", "BLOCK"):
        return "constexpr"
    if name in ("meta", "metas") or (kernel is digest.sum_mixed and name in ("sums", "pairs")):
        return "*i64"
    pointer = name in ("out", "base", "xs", "line", "g", "sums")
    return "*fp32" if pointer else "fp32" if name == "scale" else "i32"


def _nvidia(made: Any) -> dict[str, Any]:
    from triton.backends import nvidia

    ptx = made.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        told = subprocess.run(
            [tool, "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack, local = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told).groups()  # type: ignore[union-attr]
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", told, re.M)
    count = collections.Counter(lines)
    return {
        "forbidden": re.findall(r"\.ftz|fma\.rn|mad\.rn|\batom\.|\bred\.", ptx) + ["FFMA"] * count["FFMA"],
        "registers": int(registers),
        "spilled": int(stack) + int(local),
        "instructions": sum(count.values()) - count["NOP"],
        "additions": count["FADD"],
    }


def _amd(made: Any) -> dict[str, Any]:
    text = made.asm["amdgcn"]
    [registers], [spilled] = (
        re.findall(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count")
    )
    # Integer division is made of fused operations on its own reciprocals: they are no arithmetic of ours.
    packed = re.findall(r"v_pk_fma_f32|v_mad_f32|atomic", text)
    denormals = re.findall(r"amdhsa_float_denorm_mode_32 (\d)", text)
    flushed = [] if denormals == ["3"] else ["denormals"]
    return {"forbidden": packed + flushed, "registers": int(registers), "spilled": int(spilled)}


if __name__ == "__main__":
    rows = interpret() if sys.argv[1] == "interpret" else compiled([int(n) for n in sys.argv[2:]] or [64])
    print(json.dumps(rows))
