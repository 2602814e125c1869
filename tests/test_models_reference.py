"""The fast models against a plain one, and the hand-written gradients against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from coscap.models import ModelConfig, build_model, kernels
from coscap.models.base import CONTEXT_NOISE, OBJECT_NOISE
from coscap.models.kernels import (
    CellInputs,
    CellRegions,
    CellWeights,
    Packing,
    cross_entropy,
    decoder_loop,
    gru,
    latent_recurrence,
    lstm,
)
from coscap.models.noise import normals
from coscap.models.pseudo import SlotTokens, pseudo_loss
from models_batch import make_batch
from models_plain import KERNELS, plain_loss

SIZES = {
    "vocabulary": 20,
    "region_width": 6,
    "word_width": 5,
    "decoder_word_width": 7,
    "attention_lstm": 8,
    "language_lstm": 9,
    "attention_width": 5,
    "context_latent": 4,
    "object_latent": 3,
    "context_posterior": 6,
    "object_posterior": 5,
    "context_prior": 7,
    "object_prior": 6,
}


def doubled(batch):
    fields = {name: getattr(batch.pictures, name) for name in batch.pictures.__dataclass_fields__}
    for name in ("features", "boxes", "scores"):
        fields[name] = fields[name].double()
    return type(batch)(**{**batch.__dict__, "pictures": type(batch.pictures)(**fields)})


def test_loss_and_every_gradient_equal_the_plain_model():
    torch.manual_seed(0)
    model = build_model(ModelConfig(**SIZES)).double()
    batch = doubled(make_batch(captions=5, words=7))
    keys = torch.arange(5)
    captions = torch.arange(5).repeat_interleave(7)
    times = torch.arange(7).repeat(5)
    noise_m = normals(captions, CONTEXT_NOISE, times, 4).view(5, 7, 4).double()
    noise_o = normals(captions, OBJECT_NOISE, times, 3).view(5, 7, 3).double()

    parts = model.loss(batch, keys=keys)
    plain = plain_loss(model, batch, noise_m, noise_o)
    for name, value in plain.items():
        torch.testing.assert_close(getattr(parts, name), value, rtol=1e-10, atol=1e-10)

    scale = torch.rand(5).double()  # each caption its own weight
    fast = scale @ (parts.reconstruction + 0.7 * parts.kl_context + 0.3 * parts.kl_object)
    slow = scale @ (plain["reconstruction"] + 0.7 * plain["kl_context"] + 0.3 * plain["kl_object"])
    names = [name for name, _ in model.named_parameters()]
    got = torch.autograd.grad(fast, list(model.parameters()))
    expected = torch.autograd.grad(slow, list(model.parameters()))
    for name, a, b in zip(names, got, expected, strict=True):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


PACKING = Packing.of(torch.tensor([2, 4, 1, 3]), 5)
WORDS = PACKING.words


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def test_lstm_gradient():
    torch.manual_seed(1)
    assert gradcheck(lambda x, w: lstm(x, w, PACKING), (rand(WORDS, 12), rand(12, 3)))


def test_gru_gradient():
    torch.manual_seed(1)
    assert gradcheck(lambda x, w, b: gru(x, w, b, PACKING), (rand(WORDS, 9), rand(9, 3), rand(3)))


def test_latent_recurrence_gradient():
    torch.manual_seed(2)
    noise = torch.randn(WORDS, 3, dtype=torch.double)
    assert gradcheck(lambda b, w: latent_recurrence(b, w, noise, PACKING), (rand(WORDS, 6), rand(6, 3)))


@pytest.mark.parametrize("latent_in_query", [False, True])
@pytest.mark.parametrize("latent_in_language", [False, True])
@pytest.mark.parametrize("with_dropout", [False, True])
def test_decoder_loop_gradient(latent_in_query, latent_in_language, with_dropout):
    torch.manual_seed(3)
    masked = torch.zeros(4, 3, dtype=torch.double)
    masked[1, 2] = float("-inf")
    query = rand(WORDS, 2) if latent_in_query else None
    dropout = torch.randint(0, 2, (WORDS, 3)).double() * 2 if with_dropout else None
    language = rand(WORDS, 8) if latent_in_language else rand(8)
    inputs = [rand(WORDS, 12), language, rand(4, 3, 2), rand(4, 3, 4)]
    weights = [rand(12, 5), rand(2, 3), rand(2), rand(8, 9)]

    def run(x, language, keys, values, *rest):
        *weights, added = rest if query is not None else (*rest, None)
        cell_inputs = CellInputs(x, added, language, dropout)
        return decoder_loop(cell_inputs, CellRegions(keys, values, masked), CellWeights(*weights), PACKING)[0]

    assert gradcheck(run, (*inputs, *weights, *([query] if query is not None else [])))


DROPOUTS = {"attention_dropout": 0.3, "output_dropout": 0.2, "label_smoothing": 0.1}
LIKE_SMALL = {
    "object_latent_to": ("query", "language", "output"),
    "output_width": 5,
    "object_head": "slots",
    "word_dropout": 0.3,
}


@pytest.mark.parametrize(
    "changes", [{}, DROPOUTS, {**DROPOUTS, **LIKE_SMALL}], ids=["plain", "dropout", "all"]
)
@pytest.mark.parametrize("kind", ["cos_cvae", "seq_cvae", "updown"])
@pytest.mark.parametrize("pseudo", [False, True])
def test_plain_kernels_give_the_same_loss_and_gradients(kind, changes, pseudo, monkeypatch):
    """Every fast function exchanged for the plain one of the same signature, in training."""
    if pseudo and kind != "cos_cvae":
        return
    torch.manual_seed(0)
    model = build_model(ModelConfig(kind=kind, **{**SIZES, **changes})).double().train()
    batch, keys = doubled(make_batch(captions=5, words=7)), torch.arange(5) + 100
    names = SlotTokens(torch.tensor([6, 7, 8, -1]), torch.tensor([10, 11, 12, -1]))

    def run():
        terms = pseudo_loss(model, batch, names, keys=keys)[0] if pseudo else model.loss(batch, keys=keys)
        gradients = torch.autograd.grad(
            terms.objective(0.7, 0.3), list(model.parameters()), allow_unused=True
        )
        return terms, gradients

    fast, got = run()
    if pseudo:  # the plain loop has no tape: it runs over the filled captions anew
        filled = pseudo_loss(model, batch, names, keys=keys)[1]
    for function in KERNELS:
        assert hasattr(kernels, function.__name__)
        monkeypatch.setattr(kernels, function.__name__, function)
    slow, expected = run()
    if pseudo:
        assert torch.equal(filled, pseudo_loss(model, batch, names, keys=keys)[1])
    for name in ("reconstruction", "kl_context", "kl_object", "extra"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name), rtol=1e-10, atol=1e-10)
    for (name, _), a, b in zip(model.named_parameters(), got, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_dropout_and_smoothing_are_of_training_alone():
    torch.manual_seed(0)
    plain = build_model(ModelConfig(**SIZES))
    model = build_model(ModelConfig(**{**SIZES, **DROPOUTS}))
    model.load_state_dict(plain.state_dict())
    batch, keys = make_batch(), torch.arange(4)
    trained = model.train().loss(batch, keys=keys).reconstruction
    assert torch.equal(
        model.eval().loss(batch, keys=keys).reconstruction, plain.loss(batch, keys=keys).reconstruction
    )
    assert not torch.allclose(trained, plain.loss(batch, keys=keys).reconstruction)


def test_smoothing_is_that_of_torch_where_all_words_are_allowed():
    torch.manual_seed(6)
    hidden, weight = torch.randn(30, 8), torch.randn(50, 8)
    targets = torch.randint(0, 50, (30,))
    expected = torch.nn.functional.cross_entropy(
        hidden @ weight.t(), targets, reduction="none", label_smoothing=0.2
    )
    got = cross_entropy(hidden, weight, None, targets, torch.zeros(0, dtype=torch.long), 0.2)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_gradient(with_bias, smoothing):
    torch.manual_seed(4)
    hidden, weight, bias = rand(5, 3), rand(9, 3), rand(9) if with_bias else None
    targets, never = torch.tensor([2, 8, 6, 3, 2]), torch.tensor([0, 1])

    def run(hidden, weight, *bias):
        return cross_entropy(hidden, weight, bias[0] if bias else None, targets, never, smoothing)

    assert gradcheck(run, (hidden, weight, *([bias] if with_bias else [])))


def test_cross_entropy_equals_torch_over_several_parts():
    torch.manual_seed(5)
    hidden, weight = torch.randn(300, 8), torch.randn(50, 8)
    targets = torch.randint(6, 50, (300,))
    logits = hidden @ weight.t()
    logits[:, :2] = float("-inf")
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    for needs in (False, True):
        got = cross_entropy(hidden.requires_grad_(needs), weight, None, targets, torch.tensor([0, 1]))
        torch.testing.assert_close(got, expected)


def test_packing_there_and_back():
    x = torch.arange(20.0).view(4, 5)
    packed = PACKING.pack(x)
    alive = torch.arange(5) < torch.tensor([2, 4, 1, 3])[:, None]
    assert PACKING.sizes == (4, 3, 2, 1)
    torch.testing.assert_close(PACKING.unpack(packed), x * alive)
    turned = PACKING.unpack(packed[PACKING.reverse])
    assert turned[1].tolist() == [8, 7, 6, 5, 0] and turned[2].tolist() == [10, 0, 0, 0, 0]
    shifted = PACKING.unpack(PACKING.shift(packed[:, None]))[:, :, 0]
    assert shifted[1].tolist() == [0, 5, 6, 7, 0]
    torch.testing.assert_close(PACKING.sums(packed), (x * alive).sum(1))
