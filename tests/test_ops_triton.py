"""The Triton backend against plain loops: on the CPU under Triton's interpreter, and on a GPU.

The interpreter is chosen when triton is imported, so these tests run in a process of their own:
outside it, one test starts pytest on this file again with TRITON_INTERPRET=1. The interpreter's
bfloat16 products are wrong, so bfloat16 is left to the GPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_cases import (
    Case,
    assert_network,
    assert_parity,
    assert_slices_and_skip,
    attend,
    random_inputs,
)

from nlrn.models.nlrn import CONFIGS
from nlrn.ops import AttentionSpec, unsupported
from nlrn.ops.triton import launch as triton_launch
from nlrn.ops.triton import layout as triton_layout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


if INTERPRETED:
    import triton.runtime.interpreter as interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_for_new_numpy(tensor: Any, scope: Any) -> None:
        """Loop bounds are arrays of one element, which NumPy 2.4 no longer turns into an int."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_for_new_numpy

    F32, F16 = torch.float32, torch.float16
    CASES = [
        Case(2, 5, 6, 7, 9, 5, "mask", F32, True),  # consecutive pixels as tiles
        Case(2, 16, 16, 7, 9, 5, "mask", F16, False),
        Case(1, 16, 16, 6, 16, 7, "mask", F16, True),  # rows aligned for descriptors
        Case(2, 5, 6, 5, 5, 5, "circular", F32, True),  # every pixel sees every pixel
        Case(1, 16, 16, 7, 7, 7, "circular", F16, False),
        Case(1, 5, 6, 3, 4, 9, "circular", F32, True),  # wraps more than once
        Case(1, 5, 6, 3, 4, 9, "mask", F32, True, "euclidean"),  # window larger than the image
        Case(1, 3, 4, 19, 37, 3, "mask", F32, False),  # two-dimensional tiles
        Case(1, 3, 4, 19, 37, 3, "circular", F16, False),
        Case(2, 3, 4, 1, 1, 3, "mask", F32, True),
        Case(2, 3, 4, 6, 1, 3, "circular", F32, True),
    ]

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_interpreted_matches_loops(case: Case) -> None:
        assert_parity(case)

    def test_interpreted_boxed_regions_match_loops(monkeypatch: pytest.MonkeyPatch) -> None:
        tuning = triton_layout.HALF_TILED._replace(
            tile=64, tile_width=8, forward=(16, 4, 2), tma_scores=True, tma_operands=True
        )
        monkeypatch.setattr(triton_layout, "HALF_TILED", tuning)
        monkeypatch.setattr(triton_layout, "BOX_OVERHEAD", 2.0)
        monkeypatch.setattr(triton_layout, "LINEAR_ADVANTAGE", 0.0)
        triton_layout.plan_for.cache_clear()
        try:
            assert triton_layout.plan_for(6, 19, 5, False, 16, 16, F16).boxed
            assert_parity(Case(1, 16, 16, 6, 19, 5, "mask", F16, True))
            assert_slices_and_skip(Case(1, 16, 16, 6, 19, 5, "mask", F16, False))
        finally:
            triton_layout.plan_for.cache_clear()

    def test_interpreted_rows_of_whole_blocks_match_loops(monkeypatch: pytest.MonkeyPatch) -> None:
        """Keys of a row are one block: backward moves them through descriptors."""
        tuning = triton_layout.HALF_LINEAR._replace(tile=16, forward=(16, 4, 2), queries=(16, 4, 2),
                                                    keys=(16, 16, 16, 4, 2))  # fmt: skip
        monkeypatch.setattr(triton_layout, "HALF_LINEAR", tuning)
        monkeypatch.setattr(triton_layout, "LINEAR_ADVANTAGE", 9.0)
        triton_layout.plan_for.cache_clear()
        try:
            for width in (16, 32):
                plan = triton_layout.plan_for(7, width, 5, False, 16, 16, F16)
                assert plan.linear and not plan.full
                assert_parity(Case(2, 16, 16, 7, width, 5, "mask", F16, True))
        finally:
            triton_layout.plan_for.cache_clear()

    @pytest.mark.parametrize(
        "case",
        [
            Case(2, 16, 16, 7, 9, 5, "mask", F16, False),
            Case(1, 8, 12, 19, 37, 3, "mask", F32, False),  # tiles, aligned slices
            Case(1, 5, 6, 4, 7, 5, "mask", F32, False),  # slices that must be copied
            Case(1, 8, 8, 5, 5, 5, "circular", F32, False),
            Case(2, 8, 8, 4, 6, 5, "circular", F32, False),
            Case(2, 8, 8, 1, 1, 3, "mask", F32, False),
            Case(2, 8, 8, 5, 1, 3, "mask", F32, False),
        ],
        ids=str,
    )
    def test_interpreted_slices_and_skip(case: Case) -> None:
        assert_slices_and_skip(case)

    def test_interpreted_slices_are_read_where_they_lie() -> None:
        whole = torch.randn(2, 4, 7, 64)
        for part in whole.split([16, 16, 32], 3):
            assert triton_launch.evenly_spaced(part) is part
        odd = torch.randn(2, 4, 7, 63)
        for uneven in (odd[..., :16], whole[:, :, ::2], whole[..., 1:17], whole.transpose(1, 2)):
            copy = triton_launch.evenly_spaced(uneven)
            assert copy.is_contiguous() and torch.equal(copy, uneven)

    @pytest.mark.parametrize("name", ["nlrn", "nlrn-every-2", "nlrn-gaussian", "nlrn-symmetric"])
    def test_interpreted_network(name: str) -> None:
        config = dataclasses.replace(CONFIGS[name], window=5, steps=3, channels=16, embed=8)
        assert_network(config, F32, (2, 1, 7, 9))

    def test_interpreted_network_in_half_precision() -> None:
        config = dataclasses.replace(CONFIGS["nlrn"], window=5, steps=3, channels=16, embed=16)
        assert_network(config, F16, (1, 1, 6, 16))

    @pytest.mark.parametrize("name", ["nlrn-dot", "nlrn-euclidean", "rnn", "nlrn-rgb"])
    def test_interpreted_network_variants(name: str) -> None:
        config = dataclasses.replace(CONFIGS[name], window=5, steps=2, channels=6, embed=4)
        assert_network(config, F32, (1, config.in_channels, 7, 5))

    def test_interpreted_pass_after_a_convolution() -> None:
        from nlrn.ops.triton.pointwise import finish_

        for dtype in (F32, F16):
            image, added = torch.randn(2, 2, 5, 11, 13).to(dtype)
            bias, factor = torch.randn(2, 5).to(dtype)
            image[0, 3, 2, 2] = float("nan")
            flat = image + bias.view(1, -1, 1, 1)
            more = flat + added * factor.view(1, -1, 1, 1)
            for layout in (torch.channels_last, torch.contiguous_format):
                first, second = (image.clone(memory_format=layout) for _ in range(2))
                assert finish_(first, bias) is first
                finish_(second, bias, added.contiguous(memory_format=layout), factor)
                for got, wanted in ((first, flat.relu()), (second, more.relu())):
                    torch.testing.assert_close(got, wanted, rtol=4e-3, atol=4e-3, equal_nan=True)

    def test_interpreted_prior_is_overwritten_only_when_allowed() -> None:
        case = Case(1, 5, 6, 4, 7, 5, "mask", F32, False)
        inputs = random_inputs(case)
        _, first = attend(inputs[:3], case, None)
        before = first.scores()
        out, second = attend(inputs[3:], case, first)
        torch.testing.assert_close(first.scores(), before)
        same_out, same = attend(inputs[3:], case, first, reuse_prior=True)
        assert same.packed is first.packed
        torch.testing.assert_close(same_out, out)
        torch.testing.assert_close(same.scores(), second.scores())

    def test_interpreted_correlation_not_asked_for() -> None:
        case = Case(1, 5, 6, 4, 7, 5, "mask", F32, False)
        inputs = random_inputs(case)
        wanted, _ = attend(inputs[:3], case, None)
        out, correlation = attend(inputs[:3], case, None, keep_correlation=False)
        assert correlation is None
        torch.testing.assert_close(out, wanted)
        leaf = inputs[0].requires_grad_()
        out, correlation = attend([leaf, *inputs[1:3]], case, None, keep_correlation=False)
        assert correlation is None
        assert torch.autograd.grad(out.sum(), leaf)[0].isfinite().all()

    def test_interpreted_prior_of_another_batch_is_refused() -> None:
        case = Case(1, 5, 6, 4, 7, 5, "mask", F32, False)
        _, prior = attend(random_inputs(case._replace(batch=2))[:3], case, None)
        with pytest.raises(ValueError, match=r"must be \(1, 4, 7, 25\), got \(2, 4, 7, 25\)"):
            attend(random_inputs(case)[:3], case, prior)

    def test_interpreted_second_derivatives_are_an_error() -> None:
        case = Case(1, 5, 6, 4, 7, 5, "mask", F32, False)
        inputs = [t.requires_grad_() for t in random_inputs(case)[:3]]
        out, _ = attend(inputs, case, None, keep_correlation=False)
        grads = torch.autograd.grad(out, inputs, torch.ones_like(out), create_graph=True)
        with pytest.raises(RuntimeError, match="the triton backend has no second derivatives"):
            torch.autograd.grad(grads[0].square().sum(), inputs)

    def test_interpreted_traces_without_graph_breaks() -> None:
        case = Case(1, 5, 6, 4, 7, 5, "mask", F32, False)
        inputs = [t.requires_grad_() for t in random_inputs(case)]

        def network(*inputs: Tensor) -> Tensor:
            first, correlation = attend(inputs[:3], case, None)
            second, _ = attend(inputs[3:], case, correlation, keep_correlation=False)
            return (first.relu() + second).square().mean()

        traced = torch.compile(network, fullgraph=True, backend="aot_eager")
        wanted = torch.autograd.grad(network(*inputs), inputs)
        got = torch.autograd.grad(traced(*inputs), inputs)
        torch.testing.assert_close(got, wanted)

    def test_interpreted_operators_are_well_formed() -> None:
        operands = [torch.randn(1, 4, 7, c, requires_grad=True) for c in (5, 5, 6)]
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        ops = torch.ops.nlrn
        torch.library.opcheck(ops.attend, (*operands, None, 5, False, True), test_utils=utils)
        with torch.no_grad():
            out, packed, lse = ops.attend(*operands, None, 5, False, True)
            plain_operands = [t.detach() for t in operands]
            torch.library.opcheck(
                ops.attend_update, (*plain_operands, packed, 5, False), test_utils=utils
            )
            torch.library.opcheck(
                ops.attend_backward,
                (*plain_operands, out, packed, lse, out, packed, 5, False),
                test_utils=utils,
            )
            plain = ops.unpack_scores(packed, 4, 7, 5, False, 5, 6)
            torch.library.opcheck(
                ops.unpack_scores, (packed, 4, 7, 5, False, 5, 6), test_utils=utils
            )
            torch.library.opcheck(ops.pack_scores, (plain, 0.0, 5, False, 5, 6), test_utils=utils)

else:

    @needs_triton
    @pytest.mark.slow
    def test_under_the_interpreter() -> None:
        command = [sys.executable, "-m", "pytest", __file__, "-W", "ignore", "-p",
                   "no:cacheprovider", "-k", "interpreted"]  # fmt: skip
        finished = subprocess.run(
            command,
            env=os.environ | {"TRITON_INTERPRET": "1"},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]

    @pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot"])
    def test_refuses_what_it_cannot_run(affinity: str) -> None:
        reason = unsupported("triton", torch.zeros(1, 4, 3, 5), AttentionSpec(3, affinity))
        assert reason is not None
        assert "triton" in reason

    def random_case(seed: int) -> Case:
        pick = random.Random(seed)
        dtype = [torch.float32, torch.bfloat16, torch.float16][seed % 3]
        border = pick.choice(["mask", "circular"])
        height, width = pick.randint(1, 24), pick.randint(1, 24)
        window = 2 * pick.randint(0, 12) + 1
        if pick.random() < 0.2:
            border, window = "circular", height | 1
            height = width = window
        return Case(
            pick.randint(1, 2), pick.choice([3, 16, 40, 64, 128]),
            pick.choice([2, 16, 48, 128, 256]), height, width, window, border, dtype,
            pick.random() < 0.5, pick.choice(["embedded_gaussian", "gaussian", "euclidean"]),
        )  # fmt: skip

    @pytest.mark.gpu
    @needs_triton
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("seed", range(30))
    def test_gpu_matches_loops(seed: int) -> None:
        assert_parity(random_case(seed), "cuda")

    @pytest.mark.gpu
    @needs_triton
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("seed", range(6))
    def test_gpu_slices_and_skip(seed: int) -> None:
        case = random_case(seed)._replace(prior=False, affinity="embedded_gaussian")
        assert_slices_and_skip(case, "cuda")

    @pytest.mark.gpu
    @needs_triton
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("name", ["nlrn", "nlrn-every-2", "nlrn-gaussian", "nlrn-dot", "rnn"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_gpu_network(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        config = dataclasses.replace(CONFIGS[name], window=21, steps=4)
        assert_network(config, dtype, (1, 1, 45, 70), "cuda")

    @pytest.mark.filterwarnings("ignore:.*jit.script_method:DeprecationWarning")  # torch's own
    @pytest.mark.gpu
    @needs_triton
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_gpu_compiles_without_graph_breaks() -> None:
        case = Case(2, 64, 128, 16, 19, 7, "mask", torch.bfloat16, False)
        inputs = [t.requires_grad_() for t in random_inputs(case, "cuda")]

        def network(*inputs: Tensor) -> Tensor:
            first, correlation = attend(inputs[:3], case, None)
            second, _ = attend(inputs[3:], case, correlation, keep_correlation=False)
            return (first.relu() + second).square().mean()

        wanted = torch.autograd.grad(network(*inputs), inputs)
        got = torch.autograd.grad(torch.compile(network, fullgraph=True)(*inputs), inputs)
        for a, b in zip(got, wanted, strict=True):
            assert float((a - b).float().norm() / b.float().norm()) < 2e-2
