"""The llama.cpp fallback: whole sequences as pages, many at once, and what it does with trouble."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import foreign, golden
from helpers.gguf_build import (
    GGML_F32,
    GGML_Q8_0,
    I32,
    U16,
    Value,
    random_model,
    scalar,
    tensor,
    write,
)
from helpers.moe_model import MXFP4, moe_model
from helpers.paths import FIXTURES
from helpers.runner import Runner

from edgerun import LLM
from edgerun.backends.base import Batch, Memory
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import (
    BackendError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    UnsupportedModelError,
)
from edgerun.gguf import GGUFFile
from edgerun.loading import LoadedModel, load, open_backend

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from edgerun.backends.llama_cpp import LlamaCppBackend  # noqa: E402

#: Logits of the tiny models spread over several units; f16 attention rounds by batch shape.
NEAR = 5e-2

Row = tuple[Sequence[int], int, Sequence[int], Sequence[int]]
IDS = [1, 261, 270, 265, 259, 268, 262, 263, 266, 260, 264, 269]


@pytest.fixture
def backend() -> Iterator[LlamaCppBackend]:
    b = LlamaCppBackend(1)
    yield b
    b.close()


@pytest.fixture
def tiny(tmp_path: Path, backend: LlamaCppBackend) -> LoadedModel:
    return load(foreign.internlm2(tmp_path / "m.gguf"), backend, 128)


def run(model: LoadedModel, *rows: Row) -> np.ndarray:
    return np.array(model.program.run(Batch.pack(rows)))


def whole(model: LoadedModel, ids: Sequence[int], slot: int = 0) -> np.ndarray:
    """The logits of every token, in one step from nothing."""
    return run(model, (ids, 0, [slot], range(len(ids))))


# -- what it computes ----------------------------------------------------------------------------


def test_it_computes_what_the_reference_does(tmp_path: Path, tiny: LoadedModel) -> None:
    twin = Runner(random_model(tmp_path / "llama.gguf"), ReferenceBackend())
    np.testing.assert_allclose(whole(tiny, IDS), twin.logits(IDS), atol=NEAR)


def test_experts(tmp_path: Path, backend: LlamaCppBackend) -> None:
    dense = random_model(tmp_path / "dense.gguf")
    model = load(foreign.experts(tmp_path / "moe.gguf", dense), backend, 64)
    twin = Runner(dense, ReferenceBackend())
    np.testing.assert_allclose(whole(model, IDS), twin.logits(IDS), atol=NEAR)


@pytest.mark.parametrize("name", ["qwen3moe", "olmoe", "mixtral"])
def test_architectures_with_experts(backend: LlamaCppBackend, name: str) -> None:
    """The library agrees with the golden logits as far as float16 matrices let it."""
    path, data = FIXTURES / "arch" / f"{name}.gguf", np.load(FIXTURES / "arch" / f"{name}.npz")
    found = whole(load(path, backend, 256), data["ids"].tolist())
    np.testing.assert_allclose(found, data["logits"], atol=4 * NEAR)


@pytest.mark.parametrize("arch", ["gpt-oss", "qwen3moe"])
@pytest.mark.parametrize("kind", [GGML_F32, GGML_Q8_0, MXFP4])
def test_the_reference_of_experts(
    tmp_path: Path, backend: LlamaCppBackend, arch: str, kind: int
) -> None:
    """gpt-oss without YaRN, whose ramp the library rounds to whole dimensions."""
    path = moe_model(tmp_path / "m.gguf", arch, kind=kind, n_layer=1, n_ff=64)
    ids = (IDS * 7)[:70]
    found = whole(load(path, backend, 128), ids)
    wanted = Runner(path, ReferenceBackend(), n_ctx=128).logits(ids)
    near = 5e-3 if kind == GGML_F32 else 0.02 * np.abs(wanted).max()  # inputs become int8
    np.testing.assert_allclose(found, wanted, atol=near)


def test_greedy_ids_of_a_real_model() -> None:
    """As the float32 implementation's, and as the library's own loop's, where margins are clear."""
    g = golden.load("smollm2")
    own = llama_cpp.Llama(str(g.model), n_ctx=256, n_threads=1, verbose=False)
    with LLM(g.model, backend="llama_cpp", n_ctx=256, threads=1) as llm:
        wanted, streams = [], []
        for p in g.prompts[:4]:
            clear = next(
                (i for i, m in enumerate(p.margins) if m < golden.CLEAR_MARGIN), len(p.margins)
            )
            if n := min(clear, 12):
                own.reset()
                tokens = own.generate(p.ids, temp=0.0, repeat_penalty=1.0)
                wanted.append([next(tokens) for _ in range(n)])
                assert wanted[-1] == p.greedy_ids[:n]
                streams.append(llm.stream(p.ids, max_tokens=n, temperature=0.0, ignore_eos=True))
        found = [[i for chunk in s for i in chunk.token_ids] for s in streams]
    own.close()
    assert len(found) >= 2
    assert found == wanted


def test_rows_of_all_lengths_at_once(tiny: LoadedModel) -> None:
    """Chunks, single tokens and several outputs, side by side and in any slot."""
    alone = whole(tiny, IDS)
    other = IDS[::-1]
    alone_other = whole(tiny, other)
    assert tiny.kv.n_pages >= 4
    a = run(tiny, (IDS[:5], 0, [3], [4]), (other[:1], 0, [1], [0]), (IDS[:2], 0, [2], []))
    b = run(tiny, (other[1:9], 1, [1], [0, 7]), (IDS[5:6], 5, [3], [0]), (IDS[2:], 2, [2], [9]))
    c = run(tiny, (IDS[6:], 6, [3], range(6)))
    np.testing.assert_allclose(a, [alone[4], alone_other[0]], atol=NEAR)
    np.testing.assert_allclose(b, [alone_other[1], alone_other[8], alone[5], alone[11]], atol=NEAR)
    np.testing.assert_allclose(c, alone[6:], atol=NEAR)


def test_a_step_longer_than_the_librarys_batch(tiny: LoadedModel) -> None:
    ids = (IDS * 11)[:120]
    alone = whole(tiny, ids)
    tiny.program._cells.n_batch = 50  # type: ignore[attr-defined]
    assert run(tiny, (ids, 0, [1], [49, 50, 119]), (ids[:7], 0, [2], [6])) == pytest.approx(
        alone[[49, 50, 119, 6]], abs=NEAR
    )


@pytest.mark.parametrize("kind", [foreign.internlm2, foreign.mamba])
def test_cutting_back_copying_and_restoring(
    tmp_path: Path, backend: LlamaCppBackend, kind: object
) -> None:
    """Rejected drafts, shared starts, pages swapped out: also where a state has no way back."""
    model = load(kind(tmp_path / "m.gguf"), backend, 64)  # type: ignore[operator]
    alone = whole(model, IDS)
    run(model, ([*IDS[:6], 259, 259], 0, [1], []))
    cut = run(model, (IDS[6:], 6, [1], [5]))
    np.testing.assert_allclose(cut[0], alone[11], atol=NEAR)
    model.kv.copy_page(1, 2)
    run(model, ([260], 12, [1], [0]))  # the copy does not notice
    np.testing.assert_allclose(run(model, (IDS[4:], 4, [2], [7]))[0], alone[11], atol=NEAR)
    data = model.kv.export_page(2)
    run(model, ([260] * 9, 0, [3], []), ([262] * 3, 0, [2], []))
    model.kv.import_page(3, data)
    again = run(model, (IDS[3:5], 12, [3], [1]), (IDS[3:5], 0, [1], []))
    run(model, (IDS, 0, [2], []))
    np.testing.assert_allclose(again, run(model, (IDS[3:5], 12, [2], [1])), atol=NEAR)


# -- in the engine -------------------------------------------------------------------------------


def test_many_requests_reuse_and_cancel(tmp_path: Path) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    greedy = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    prompts = [[*IDS[: 3 + i % 6], 259 + i] for i in range(20)]
    with LLM(path, n_ctx=128, threads=1) as llm:
        assert llm.backend.name == "llama_cpp"
        alone = [llm.generate(p, **greedy).token_ids for p in prompts]
        doomed = llm.stream(IDS, max_tokens=100, temperature=0.0, ignore_eos=True)
        streams = [llm.stream(p, **greedy) for p in prompts]
        next(doomed)
        doomed.close()
        together = [tuple(i for chunk in s for i in chunk.token_ids) for s in streams]
        llm.generate(IDS, max_tokens=2)
        again = llm.generate([*IDS, 259, 260], max_tokens=2)
        three = llm.generate(IDS, n=3, **greedy)
        m = llm.metrics()
    assert together == alone
    assert again.usage.cached_tokens >= len(IDS)
    assert len({c.token_ids for c in three.choices}) == 1
    assert m.finished["abort"] == 1
    assert m.finished["error"] == 0


def test_drafts_that_are_asked_for_leave_the_text_alone(tmp_path: Path) -> None:
    path = foreign.mamba(tmp_path / "m.gguf")
    texts = []
    for speculation in ("auto", "ngram"):
        with LLM(path, n_ctx=128, threads=1, speculation=speculation) as llm:
            done = llm.generate(IDS * 2, max_tokens=40, temperature=0.0, ignore_eos=True)
            texts.append(done.token_ids)
            drafted = llm.metrics().drafts
            assert bool(drafted) == (speculation == "ngram")
    assert texts[0] == texts[1]


# -- trouble -------------------------------------------------------------------------------------


def test_bad_steps_are_refused_and_leave_it_usable(tiny: LoadedModel) -> None:
    alone = whole(tiny, IDS)
    with pytest.raises(RequestError, match="token id 99999"):
        run(tiny, ([99999], 0, [0], [0]))
    with pytest.raises(BackendError, match="past the context of 128"):
        run(tiny, ([5] * 129, 0, [0], [0]))
    with pytest.raises(BackendError, match="slots of their own"):
        run(tiny, ([5], 0, [0], [0]), ([6], 0, [0], [0]))
    with pytest.raises(BackendError, match="slots of their own"):
        run(tiny, ([5], 0, [tiny.kv.n_pages], [0]))
    with pytest.raises(BackendError, match="holds 0 tokens, not 7"):
        run(tiny, ([5], 7, [2], [0]))
    with pytest.raises(BackendError, match="cannot be restored"):
        tiny.kv.import_page(1, b"\1\0\0\0\0\0\0\0rubbish")
    assert run(tiny).shape == (0, tiny.program.n_vocab)
    np.testing.assert_allclose(whole(tiny, IDS, 1), alone, atol=NEAR)


def test_a_failed_step_empties_its_slots(tiny: LoadedModel) -> None:
    run(tiny, (IDS, 0, [1], []))
    gap = [np.array(v, np.int32) for v in ([5, 6], [70, 90], [1, 1])]
    with pytest.raises(BackendError, match=r"failed with status -1: \S+ \S+"):
        tiny.program._cells.decode(*gap, np.zeros(2, np.int8))  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="holds 0 tokens"):
        run(tiny, ([5], 12, [1], [0]))


def test_what_it_cannot_load(tmp_path: Path, backend: LlamaCppBackend) -> None:
    unknown = random_model(tmp_path / "unknown.gguf", "frobnicator")
    with pytest.raises(UnsupportedModelError, match=r"unknown\.gguf.*frobnicator"):
        load(unknown, backend)
    with pytest.raises(UnsupportedModelError, match=r"'frobnicator' is not supported.*no help"):
        LLM(unknown)
    more = random_model(tmp_path / "more.gguf", "internlm2", extra_tensors=[tensor("x", [1.0])])
    with pytest.raises(ModelFileError, match=r"more\.gguf.*tensor"):
        load(more, backend)
    fine = foreign.internlm2(tmp_path / "fine.gguf")
    with pytest.raises(RequestError, match="KV type 'q1'"):
        load(fine, backend, kv_type="q1")
    with pytest.raises(BackendError, match=r"with kv_type q8_0: .*block size 32"):
        load(fine, backend, 64, "q8_0")


def test_kv_types(tmp_path: Path, backend: LlamaCppBackend) -> None:
    fine = random_model(tmp_path / "m.gguf", "internlm2", n_head=2)
    for kv_type in backend.kv_types:
        assert np.isfinite(whole(load(fine, backend, 64, kv_type), IDS)).all()


def test_too_little_memory(
    tmp_path: Path, backend: LlamaCppBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    size = path.stat().st_size
    monkeypatch.setattr(backend, "memory", lambda: Memory(10**12, size + 40_000))
    with pytest.raises(OutOfMemoryError, match="lower n_ctx"):
        load(path, backend, 512)


def test_ctrl_c_ends_a_load(tmp_path: Path, backend: LlamaCppBackend) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(path, backend, progress=progress)
    assert len(seen) == 1
    seen.clear()
    load(path, backend, 64, progress=lambda *a: seen.append(a))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_after_close(tiny: LoadedModel) -> None:
    tiny.backend.close()
    tiny.backend.close()
    with pytest.raises(BackendError, match="closed"):
        run(tiny, ([5], 0, [0], [0]))
    with pytest.raises(BackendError, match="closed"):
        tiny.kv.export_page(0)


def test_it_says_that_it_is_a_fallback_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    with caplog.at_level(logging.WARNING), LLM(path, n_ctx=64) as llm:
        llm.generate(IDS, max_tokens=2)
        assert "fallback" in llm.backend.describe()["role"]
        assert not llm.backend.batch_invariant
    (record,) = caplog.records
    assert "internlm2" in record.getMessage()
    assert f"llama-cpp-python {llama_cpp.__version__}" in record.getMessage()
    assert capfd.readouterr().out == ""
    facts = open_backend("llama_cpp").describe()
    assert facts["version"] == llama_cpp.__version__


def test_splits_are_one_model(tmp_path: Path, tiny: LoadedModel) -> None:
    with GGUFFile.open(tiny.path) as file:
        tensors = [
            tensor(n, np.array(file.rows(n)).view(np.float32).reshape(t.shape))
            for n, t in file.tensors.items()
        ]
        meta = {k: file.metadata[k] for k in file.metadata if k.startswith("internlm2.")}
    meta = {"general.architecture": "internlm2"} | meta | foreign.vocab()
    count = u16(2), scalar(I32, len(tensors))
    for i, part in enumerate((tensors[:7], tensors[7:])):
        split = {"split.no": u16(i), "split.count": count[0], "split.tensors.count": count[1]}
        write(tmp_path / f"s-0000{i + 1}-of-00002.gguf", (meta if not i else {}) | split, part)
    model = load(tmp_path / "s-00002-of-00002.gguf", tiny.backend, 64)
    np.testing.assert_allclose(whole(model, IDS), whole(tiny, IDS), atol=NEAR)


def u16(v: int) -> Value:
    return scalar(U16, v)
