"""The fast models against a plain one, and the hand-written gradients against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from coscap.models import ModelConfig, build_model
from coscap.models.attention_loop import attention_loop
from coscap.models.base import CONTEXT_NOISE, OBJECT_NOISE
from coscap.models.cross_entropy import cross_entropy
from coscap.models.noise import normals
from coscap.models.packing import Packing
from coscap.models.recurrent import chain, gru, lstm
from models_batch import make_batch
from models_plain import plain_loss

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


def test_chain_gradient():
    torch.manual_seed(2)
    noise = torch.randn(WORDS, 3, dtype=torch.double)
    assert gradcheck(lambda b, w: chain(b, w, noise, PACKING), (rand(WORDS, 6), rand(6, 3)))


@pytest.mark.parametrize("latent_in_query", [False, True])
@pytest.mark.parametrize("latent_in_language", [False, True])
def test_attention_loop_gradient(latent_in_query, latent_in_language):
    torch.manual_seed(3)
    barred = torch.zeros(4, 3, dtype=torch.double)
    barred[1, 2] = float("-inf")
    query = rand(WORDS, 2) if latent_in_query else None
    language = rand(WORDS, 8) if latent_in_language else rand(8)
    inputs = [rand(WORDS, 12), language, rand(4, 3, 2), rand(4, 3, 4)]
    weights = [rand(12, 5), rand(2, 3), rand(2), rand(8, 9)]

    def run(x, spoken, keys, values, *rest):
        *weights, asked = rest if query is not None else (*rest, None)
        return attention_loop(x, asked, spoken, keys, values, barred, *weights, PACKING)[0]

    assert gradcheck(run, (*inputs, *weights, *([query] if query is not None else [])))


@pytest.mark.parametrize("with_bias", [False, True])
def test_cross_entropy_gradient(with_bias):
    torch.manual_seed(4)
    hidden, weight, bias = rand(5, 3), rand(9, 3), rand(9) if with_bias else None
    targets, never = torch.tensor([2, 8, 6, 3, 2]), torch.tensor([0, 1])

    def run(hidden, weight, *bias):
        return cross_entropy(hidden, weight, bias[0] if bias else None, targets, never)

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
