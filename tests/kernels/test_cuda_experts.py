"""CUDA's experts on the SIMT engine: the choice and its columns against numpy, each type's products
bit for bit as each expert's alone, the weighed sum bit for bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from helpers import simt
from helpers.cuda_act import fma
from helpers.cuda_experts import FILE, Columns, Stack, chosen, columns, route, total
from helpers.cuda_linear import Matrix, compiled, module
from helpers.weights import gguf_rows
from kernels.cases import EXPERTS
from kernels.cases_float import FLOATS
from numpy.typing import NDArray

from edgerun.backends import cuda_experts as ce
from edgerun.backends import cuda_weights as cw
from edgerun.backends.base import Experts
from edgerun.backends.cuda_lowered import Choice

F32 = NDArray[np.float32]
CASES = (*((t, n, k) for _, t, n, k in EXPERTS), *((t, 17, 259) for t in FLOATS))
#: One that all tokens have, one that most have, nine and one token's, and one that nobody has.
EXPERT = np.array([[4, 1]] + [[2, 4]] * 9 + [[3, 4]] * 15 + [[4, 3]] * 15, np.int32)
N_EXPERTS = 6


def bits(x: F32) -> NDArray[np.uint32]:
    return x.view(np.uint32)


def spec(n_experts: int, n_used: int, **more: object) -> Experts:
    return Experts(n_experts, n_used, 32, **more)  # type: ignore[arg-type]


def same(a: Columns, b: Columns) -> None:
    for name in ("expert", "column", "token", "live"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
    for i in (0, 1):
        np.testing.assert_array_equal(a.items[i], b.items[i], f"items{i}")


# -- who has which expert ------------------------------------------------------------------------

CHOICES = (
    (1, spec(3, 1)),
    (5, spec(8, 3, normalize=True, scale=2.5)),
    (33, spec(40, 8, gating="chosen")),
    (70, spec(130, 4, normalize=True)),
    (40, spec(6, 6)),
    (64, spec(2, 1, gating="chosen")),
)


def router(n: int, n_experts: int, seed: int = 0) -> F32:
    """Logits with many equal ones; what is not finite in some rows."""
    rng = np.random.default_rng([n, n_experts, seed])
    logits = rng.normal(0, 3, (n, n_experts)).astype(np.float32)
    logits[::2] = np.rint(logits[::2])
    if n > 4:
        logits[1] = -np.inf
        logits[2, :: max(1, n_experts // 3)] = np.nan
        logits[3, n_experts // 2] = np.inf
        logits[4] = np.nan
    return logits


@pytest.mark.parametrize(("n", "experts"), CHOICES, ids=lambda v: str(v) if v == 0 else "")
@pytest.mark.parametrize("order", simt.ORDERS[:3], ids=["rising", "falling", "random"])
def test_choices_and_columns(n: int, experts: Experts, order: tuple[int, int]) -> None:
    m = simt.build(FILE)
    logits = router(n, experts.n_experts)
    expert, shares = chosen(logits, experts)
    kvpos = np.arange(n, dtype=np.int32)
    kvpos[n // 2 :: 7] = -1  # as padding is
    for places in (None, kvpos):
        with simt.ordered(m, order):
            found, share = route(m, logits, experts, (1, 4), places)
        wanted = expert.copy()
        if places is not None:
            wanted[places < 0] = -1
        same(found, columns(wanted, experts.n_experts, (1, 4)))
        np.testing.assert_allclose(share, shares, atol=1e-6, rtol=1e-5)
        assert np.isnan(share[np.isnan(logits).any(axis=1)]).all()
    for i in range(0, n, 9):  # a token's shares have nothing to do with the others'
        alone = route(m, logits[i : i + 1], experts)[1]
        assert (bits(alone) == bits(share[i : i + 1])).all()


def test_most_columns_and_items() -> None:
    """No choice needs more, and some choice needs as many."""
    rng = np.random.default_rng(0)
    for n, used, n_experts in ((1, 8, 128), (3, 2, 4), (9, 1, 3), (16, 4, 32), (20, 2, 64)):
        choice = Choice(used, n_experts)
        for tiles in (1, 2, 4, 8):
            most = ce.most_items(n, choice, 8 * tiles)
            worst = 0
            for spread in (1.0, 0.2, 5.0, 0.0):
                weights = rng.exponential(size=n_experts) ** spread
                score = rng.exponential(size=(n, n_experts)) / weights
                picked = np.argsort(score, axis=1)[:, :used]
                counts = np.bincount(picked.reshape(-1), minlength=n_experts)
                worst = max(worst, int((-(-counts // (8 * tiles))).sum()))
            assert worst <= most <= min(n * used, n_experts) * -(-n // (8 * tiles))
    assert ce.most_items(1, Choice(8, 128), 8) == 8
    assert ce.n_columns(512, Choice(8, 128)) == 8 * (512 + 112)
    for n in range(1, 70):  # buffers are sized by buckets
        assert ce.n_columns(n, Choice(3, 7)) <= ce.n_columns(n + 1, Choice(3, 7))


@pytest.mark.parametrize(
    ("n", "used", "of", "kernel"),
    [
        (1, 8, 128, "qmm_experts<12,1>"),
        (8, 8, 128, "qmm_experts<12,1>"),
        (16, 4, 8, "qmm_experts<12,2>"),
        (64, 8, 128, "qmm_experts<12,2>"),
        (300, 8, 128, "qmm_experts<12,2>"),
        (400, 8, 128, "qgemm_experts<12,4>"),
        (1024, 8, 128, "qgemm_experts<12,8>"),
        (21, 2, 2, "qgemm_experts<12,4>"),
    ],
)
def test_the_kernel_follows_the_tokens_of_an_expert(
    n: int, used: int, of: int, kernel: str
) -> None:
    found = ce.product(12, 96, 2048, n, Choice(used, of))
    assert found.shape.name == kernel
    narrow = ce.product(int(T.Q4_1), 96, 2048, n, Choice(used, of)).shape.name
    assert not narrow.endswith(",8>")
    assert ce.product(int(T.Q5_1), 96, 2048, 16, Choice(used, of)).tiles == 1
    both = [ce.product(t, 96, 2048, n, Choice(used, of), 4) for t in (3, 12)]
    assert both[0].tiles == both[1].tiles
    assert ce.product(int(T.F16), 96, 2048, n, Choice(used, of)).tiles == 1


# -- products ------------------------------------------------------------------------------------


@functools.cache
def case(t: T, n: int, k: int) -> tuple[NDArray[np.uint8], F32]:
    """File rows of all experts, and inputs."""
    rng = np.random.default_rng([int(t), n, k])
    rows = np.ascontiguousarray(gguf_rows(t, N_EXPERTS * n, k, rng)).view(np.uint8)
    x = rng.standard_normal((len(EXPERT), k), dtype=np.float32)
    x[:, : k // 2] *= np.float32(3)
    x[::2, 32:64] *= np.float32(20)  # a block that gets a second digit
    return rows.reshape(N_EXPERTS, n, -1), x


#: Tokens that ask for the kernel of prompts.
MANY = 90


def tiles_of(stack: Stack) -> tuple[Columns, int]:
    """The choice with items for few and for many tokens; tokens that ask for the first kernel."""
    few = ce.product(stack.t, stack.tiles, stack.k, 16, Choice(2, N_EXPERTS)).tiles
    return columns(EXPERT, N_EXPERTS, (few, 4)), 16


def check(y: F32, choice: Columns, e: int, wanted: F32) -> None:
    """Columns of expert ``e`` hold ``wanted`` [its tokens, n], and no column of padding was
    written."""
    where = choice.column[choice.expert == e]
    assert (bits(y[np.sort(where)]) == bits(wanted)).all(), f"expert {e}"
    assert (bits(y[choice.token < 0]) == 0xFFFFFFFF).all()


def alone(w: Matrix, x: F32) -> F32:
    """One expert's products, of so few tokens at once that every type has a kernel for them."""
    return np.concatenate([w.run(x[i : i + 20]) for i in range(0, len(x), 20)])


def tokens_of(e: int) -> NDArray[np.int64]:
    return np.nonzero((e == EXPERT).any(axis=1))[0]


@pytest.mark.parametrize("row", CASES, ids=lambda r: f"{r[0].name}-{r[1]}x{r[2]}")
def test_each_expert_as_if_alone(row: tuple[T, int, int]) -> None:
    t, n, k = row
    rows, x = case(t, n, k)
    stack = Stack(module(t), t, rows, k)
    choice, few = tiles_of(stack)
    kernels = {p.shape.name: p for p in (stack.product(choice, few), stack.product(choice, MANY))}
    assert len(kernels) == (1 if t in FLOATS else 2)
    for product in kernels.values():
        y = stack.run(x, choice, product=product)
        for e in range(N_EXPERTS):
            tokens = tokens_of(e)
            if len(tokens):
                check(y, choice, e, alone(stack.experts[e], x[tokens]))


@pytest.mark.parametrize("order", simt.ORDERS[1:3], ids=["falling", "random"])
@pytest.mark.parametrize("t", [T.MXFP4, T.F16], ids=lambda t: t.name)
def test_bits_do_not_depend_on_the_order_of_threads(t: T, order: tuple[int, int]) -> None:
    n, k = next((n, k) for u, n, k in CASES if u == t)
    rows, x = case(t, n, k)
    stack = Stack(module(t), t, rows, k)
    choice, few = tiles_of(stack)
    for product in (stack.product(choice, few), stack.product(choice, MANY)):
        want = bits(stack.run(x, choice, product=product))
        with simt.ordered(module(t), order):
            assert (bits(stack.run(x, choice, product=product)) == want).all()


@pytest.mark.parametrize("t", [T.Q4_K], ids=lambda t: t.name)
def test_one_tile_and_eight(t: T) -> None:
    """The kernels of single tokens and of long prompts."""
    i, (n, k) = int(t), (17, 768)
    names = ("qmm_experts<{0},1>", "qgemm_experts<{0},8>", "repack<{0}>")
    rows, x = case(t, n, k)
    stack = Stack(compiled(i, tuple(s.format(i) for s in names)), t, rows, k)
    choice = columns(EXPERT, N_EXPERTS, (1, 8))
    few, many = (stack.run(x, choice, product=stack.product(choice, n)) for n in (8, 4000))
    assert (bits(few) == bits(many)).all()
    for e in (1, 4):
        check(few, choice, e, alone(Matrix(module(t), t, rows[e], k), x[tokens_of(e)]))


@pytest.mark.parametrize("t", [T.Q8_0, T.Q5_K, T.BF16], ids=lambda t: t.name)
def test_gate_and_up_with_their_biases(t: T) -> None:
    n, k = 13, 256
    rng = np.random.default_rng(int(t))
    gates, ups = (
        np.ascontiguousarray(gguf_rows(t, N_EXPERTS * n, k, rng)).view(np.uint8) for _ in "gu"
    )
    gates, ups = gates.reshape(N_EXPERTS, n, -1), ups.reshape(N_EXPERTS, n, -1)
    x = rng.standard_normal((len(EXPERT), k), dtype=np.float32)
    biases = rng.normal(0, 4, (2, N_EXPERTS, n)).astype(np.float32)
    pair = Stack(module(t), t, gates, k, ups)
    choice, few = tiles_of(pair)
    acts = (cw.Epilogue.SILU_MUL, cw.Epilogue.GELU_MUL, cw.Epilogue.SWIGLU_OAI)
    for act in acts:
        found = [
            pair.run(x, choice, *biases, act, product)
            for product in (pair.product(choice, few), pair.product(choice, MANY))
        ]
        assert (bits(found[0]) == bits(found[1])).all()
        for e in (1, 3, 4):
            tokens = tokens_of(e)
            g, u = (
                alone(Matrix(module(t), t, rows[e], k), x[tokens]).astype(np.float64) + bias[e]
                for rows, bias in ((gates, biases[0]), (ups, biases[1]))
            )
            where = np.sort(choice.column[e == EXPERT])
            np.testing.assert_allclose(found[0][where], unit(g, u, act), atol=1e-4, rtol=1e-4)
    plain = Stack(module(t), t, gates, k)
    y = plain.run(x, choice, biases[0], product=plain.product(choice, MANY))
    check(y, choice, 3, alone(plain.experts[3], x[tokens_of(3)]) + biases[0][3])


def unit(g: NDArray[np.float64], u: NDArray[np.float64], act: cw.Epilogue) -> NDArray[np.float64]:
    if act == cw.Epilogue.SWIGLU_OAI:
        g, u = np.minimum(g, 7), np.clip(u, -7, 7)
        return g / (1 + np.exp(np.minimum(-1.702 * g, 700))) * (u + 1)
    inner = g if act == cw.Epilogue.SILU_MUL else 1.5957691216057308 * (g + 0.044715 * g**3)
    return g / (1 + np.exp(-np.clip(inner, -700, 700))) * u


def test_limits_leave_nan_alone() -> None:
    """gpt-oss's unit cuts off gate and up: NaN passes both limits."""
    m, act = simt.build(simt.KERNELS / "glu.cu"), cw.Epilogue.SWIGLU_OAI
    g = np.array([np.nan, 1, 9, -np.inf, 2, 3], np.float32)
    u = np.array([1, np.nan, 9, 1, -9, -np.inf], np.float32)
    out = simt.Guarded(6, np.float32)
    m.launch("glu", 1, 32, g, u, out.array, np.int64(6), np.int32(act))
    assert np.isnan(out.array[[0, 1, 3]]).all()
    wanted = unit(g[[2, 4]].astype(np.float64), u[[2, 4]].astype(np.float64), act)
    np.testing.assert_allclose(out.array[[2, 4]], wanted, rtol=1e-6)
    assert np.isfinite(out.array[5])


# -- the weighed sum -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 1032])
def test_the_sum_goes_by_rank(width: int) -> None:
    rng = np.random.default_rng(width)
    n, used = 5, 3
    parts = rng.standard_normal((40, width), dtype=np.float32)
    parts[0] = np.nan  # nobody's
    column = (1 + rng.permutation(39)[: n * used].reshape(n, used)).astype(np.int32)
    share = rng.random((n, used), dtype=np.float32)
    column[2] = -1
    share[3, 1] = np.nan
    residual = rng.standard_normal((n, width), dtype=np.float32)
    want = np.zeros((n, width), np.float32)
    for rank in range(used):
        added = fma(share[:, rank, None], parts[np.maximum(column[:, rank], 1)], want)
        want = np.where(column[:, rank, None] >= 0, added, want)
    m = simt.build(FILE)
    for order in simt.ORDERS[:2]:
        with simt.ordered(m, order):
            np.testing.assert_array_equal(total(m, parts, column, share), want)
            both = total(m, parts, column, share, residual)
    np.testing.assert_array_equal(both, residual + want)
    assert np.isnan(want[3]).all()
    assert (want[2] == 0).all()
