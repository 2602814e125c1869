"""Writing word by word: the same numbers as the loss, whatever the batch."""

import copy
from dataclasses import fields, replace

import pytest
import torch

from coscap.data.batch import RegionBatch
from coscap.models import ModelConfig, build_model, kernels, preset
from coscap.text.vocabulary import END, PAD, SLOT, SLOTS, START, UNK
from models_batch import make_batch, make_regions
from models_plain import KERNELS
from test_models_reference import SIZES

VARIANTS = {
    "paper": {},
    "released": {
        "encoder_cell": "gru",
        "object_posterior_sees": "mean",
        "object_reader": "mean",
        "object_prior_sees": "previous",
        "context_posterior_sees_picture": False,
        "output_width": 7,
        "output_bias": False,
    },
    "small": {
        "class_embedding": 3,
        "classes": 4,
        "geometry": True,
        "grid": False,
        "region_projection": 6,
        "region_scale": 2.0,
        "region_layers": 1,
        "region_heads": 3,
        "mean_over": "detections",
        "decoder_word_width": 0,
        "output_width": 5,
        "tie_words": True,
        "object_posterior_sees": "objects",
        "object_reader": "attend",
        "object_latent_to": ("query", "language", "output"),
    },
}


def take(regions: RegionBatch, rows: torch.Tensor) -> RegionBatch:
    return RegionBatch(**{field.name: getattr(regions, field.name)[rows] for field in fields(regions)})


def model_of(kind="cos_cvae", **changes):
    torch.manual_seed(0)
    return build_model(ModelConfig(kind=kind, **{**SIZES, **changes})).eval()


def written(model, regions, draws, seed=3, words=5, **options):
    """Greedy words, their log-probabilities and the attention."""
    state = model.start(regions, draws, seed=seed, **options)
    tokens = torch.full((state.rows,), START)
    said, logs, looked = [], [], []
    for _ in range(words):
        log, state, attention = model.step(tokens, state)
        tokens = log.argmax(1)
        said.append(tokens)
        logs.append(log.gather(1, tokens[:, None])[:, 0])
        looked.append(attention)
    return torch.stack(said, 1), torch.stack(logs, 1), torch.stack(looked, 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["cos_cvae", "seq_cvae", "updown"])
def test_steps_under_teacher_forcing_give_the_reconstruction(kind, variant):
    model, batch = model_of(kind, **VARIANTS[variant]), make_batch(captions=5)
    keys = torch.arange(5)
    loss = model.loss(batch, keys=keys).reconstruction
    latents = None if kind == "updown" else model.encode(batch, keys=keys)
    state = model.start(take(batch.pictures, batch.rows), 1, latents=latents)
    tokens, total = torch.full((5,), START), torch.zeros(5)
    for t in range(batch.words.shape[1]):
        logs, state, _ = model.step(tokens, state)
        tokens = batch.words[:, t]
        here = t < batch.lengths
        total -= torch.where(here, logs.gather(1, tokens.clamp(min=END)[:, None])[:, 0], 0)
    torch.testing.assert_close(total, loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["cos_cvae", "seq_cvae", "updown"])
def test_captions_do_not_depend_on_the_batch(kind):
    model, regions = model_of(kind), make_regions(pictures=4)
    said, logs, _ = written(model, regions, 6)
    for order in (torch.tensor([2]), torch.tensor([3, 0])):
        some, some_logs, _ = written(model, take(regions, order), 4)  # fewer draws, other neighbours
        expected = torch.stack([said.view(4, 6, -1)[p, :4] for p in order.tolist()]).flatten(0, 1)
        assert torch.equal(some, expected)
        chosen = torch.stack([logs.view(4, 6, -1)[p, :4] for p in order.tolist()]).flatten(0, 1)
        torch.testing.assert_close(some_logs, chosen, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["cos_cvae", "updown"])
def test_what_many_rows_share_changes_nothing(kind, monkeypatch):
    """Regions and words multiplied once, transposed weights: the same numbers as row by row."""
    model, regions = model_of(kind, output_width=5), make_regions(pictures=2)
    said, logs, looked = written(model, regions, 40)
    monkeypatch.setattr("coscap.models.decoder.EXPECTED_WORDS", 0)
    monkeypatch.setattr("coscap.models.base.MANY", 1000)
    monkeypatch.setattr(
        "coscap.models.base.UniqueTokens.of", classmethod(lambda cls, tokens: cls(tokens, None))
    )
    plain_said, plain_logs, plain_looked = written(model, regions, 40)
    assert torch.equal(said, plain_said)
    torch.testing.assert_close(logs, plain_logs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(looked, plain_looked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["cos_cvae", "seq_cvae", "updown"])
@pytest.mark.parametrize("draws", [1, 40])
def test_plain_kernels_decode_the_same(kind, draws, monkeypatch):
    model, regions = model_of(kind, **VARIANTS["small"]), make_regions(pictures=3)
    fast = written(model, regions, draws)
    for function in KERNELS:
        monkeypatch.setattr(kernels, function.__name__, function)
    slow = written(model, regions, draws)
    assert torch.equal(fast[0], slow[0])
    torch.testing.assert_close(fast[1:], slow[1:], rtol=1e-5, atol=1e-5)


def test_select_copies_drops_and_reorders_rows():
    model, regions = model_of(), make_regions(pictures=3)
    state = model.start(regions, 4, seed=1, record=True)
    _, state, _ = model.step(torch.full((12,), START), state)
    tokens = torch.arange(12) % 5 + 6
    logs, after, attention = model.step(tokens, state)
    rows = torch.tensor([11, 0, 0, 5, 2])
    cut = state.select(rows)
    assert cut.rows == 5 and state.rows == 12
    some, cut_after, some_attention = model.step(tokens[rows], cut)
    torch.testing.assert_close(some, logs[rows], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(some_attention, attention[rows], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cut_after.latents().objects, after.latents().objects[rows])
    torch.testing.assert_close(cut_after.latents().context, after.latents().context[rows])


def test_words_that_no_caption_has_get_no_probability():
    model, regions = model_of(), make_regions()
    logs, _, attention = model.step(torch.full((3,), START), model.start(regions, 1))
    never = torch.tensor([PAD, START, SLOT, SLOTS, UNK])
    assert bool((logs[:, never] == float("-inf")).all())
    assert bool(torch.isfinite(logs[:, [END, *range(6, 20)]]).all())
    torch.testing.assert_close(attention.sum(1), torch.ones(3))
    assert bool((attention[~regions.mask] == 0).all())
    assert bool((logs.exp().sum(1) < 1).all()), "<unk> keeps its share"


def test_draws_differ_and_seeds_differ():
    model, regions = model_of(), make_regions(pictures=1)
    _, logs, _ = written(model, regions, 5)
    assert len(set(logs[:, 0].tolist())) == 5
    assert not torch.equal(logs, written(model, regions, 5, seed=4)[1])


def test_what_padding_holds_does_not_matter():
    model, regions = model_of(), make_regions()
    dirty = replace(
        regions,
        features=regions.features.masked_fill(~regions.mask[:, :, None], 1e6),
        boxes=regions.boxes.masked_fill(~regions.mask[:, :, None], float("nan")),
    )
    assert torch.equal(written(model, regions, 2)[1], written(model, dirty, 2)[1])


def test_grid_cells_can_be_left_out_but_not_all_regions():
    model, regions = model_of(grid=False), make_regions()
    _, _, attention = written(model, regions, 1)
    grid = regions.labels < 0
    assert bool((attention.amax(1)[grid] == 0).all())
    cells_only = replace(regions, labels=torch.full_like(regions.labels, -1))
    assert bool(torch.isfinite(written(model, cells_only, 1)[1]).all())
    nothing = replace(regions, mask=torch.zeros_like(regions.mask))
    assert bool(torch.isfinite(written(model, nothing, 1)[1]).all())


@pytest.mark.parametrize("most", [0, 1, 2])
def test_only_the_best_detections_are_looked_at(most):
    """Whether the loader leaves the others out or the model does: the same attention over those that stay."""
    model, regions = model_of(detections=most, grid=True), make_regions()
    detected = regions.mask & (regions.labels >= 0)
    stay = regions.mask & ~(detected & (detected.cumsum(1) > most))
    encoded = model.regions(regions)
    assert torch.equal(encoded.mask, stay[:, : encoded.mask.shape[1]])
    everything = model_of(grid=True)
    everything.load_state_dict(model.state_dict())
    left_out = written(everything, replace(regions, mask=stay), 2)
    assert all(
        torch.equal(one, other) for one, other in zip(written(model, regions, 2), left_out, strict=True)
    )


def test_a_model_must_look_at_something():
    with pytest.raises(ValueError, match="detections: 0 needs grid: true"):
        model_of(detections=0, grid=False)


def test_mean_is_taken_over_the_chosen_regions():
    regions = make_regions()
    detected = regions.mask & (regions.labels >= 0)
    for over, chosen in (("all", regions.mask), ("detections", detected), ("grid", regions.mask & ~detected)):
        encoded = model_of(mean_over=over).regions(regions)
        for p in range(3):
            torch.testing.assert_close(encoded.mean[p], regions.features[p][chosen[p]].mean(0))


def test_regions_that_read_each_other_are_as_in_torch():
    """Two layers with weights of any size against torch's own encoder layers; nothing of it depends on padding."""
    torch.manual_seed(1)
    encoder = model_of(region_projection=8, region_layers=2, region_heads=4).regions
    plain = [
        torch.nn.TransformerEncoderLayer(8, 4, 16, 0.0, batch_first=True, norm_first=True).eval()
        for _ in range(2)
    ]
    names = {
        "self_attn.in_proj_weight": "query_key_value.weight",
        "self_attn.in_proj_bias": "query_key_value.bias",
        "self_attn.out_proj.weight": "attention_out.weight",
        "self_attn.out_proj.bias": "attention_out.bias",
        "linear1.weight": "mlp_in.weight",
        "linear1.bias": "mlp_in.bias",
        "linear2.weight": "mlp_out.weight",
        "linear2.bias": "mlp_out.bias",
        "norm1.weight": "attention_norm.weight",
        "norm1.bias": "attention_norm.bias",
        "norm2.weight": "mlp_norm.weight",
        "norm2.bias": "mlp_norm.bias",
    }
    for layer, other in zip(encoder.layers, plain, strict=True):
        for weight in other.parameters():
            torch.nn.init.normal_(weight, std=0.5)
        layer.load_state_dict({ours: other.state_dict()[theirs] for theirs, ours in names.items()})
    values, mask = (
        torch.randn(3, 5, 8),
        torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool(),
    )
    ours = theirs = values
    for layer, other in zip(encoder.layers, plain, strict=True):
        ours, theirs = layer(ours, mask), other(theirs, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours[mask], theirs[mask])
    short = encoder.layers[0](values[1:2, :3], mask[1:2, :3])
    torch.testing.assert_close(encoder.layers[0](values, mask)[1, :3], short[0])


def test_layers_of_regions_change_nothing_before_training():
    regions = make_regions()
    without, with_layers = (
        model_of(region_projection=8),
        model_of(region_projection=8, region_layers=1, region_heads=2),
    )
    with_layers.load_state_dict(without.state_dict(), strict=False)
    torch.testing.assert_close(with_layers.regions(regions).values, without.regions(regions).values)


@pytest.mark.parametrize("name", ["paper", "released", "small"])
def test_presets_build_and_learn(name):
    """With small widths the shipped configurations run; their own widths are in the benchmarks."""
    shrunk = {key: value for key, value in SIZES.items() if key not in ("decoder_word_width",)}
    own = preset(name)
    words = 7 if own.decoder_word_width else 0
    changes = {
        "decoder_word_width": words,
        "output_width": (words or 5) if own.output_width else 0,
        "region_projection": 6 if own.region_projection else 0,
    }
    config = preset(name, **shrunk, **changes, **({"classes": 4} if own.classes else {}))
    torch.manual_seed(0)
    model, batch = build_model(config), make_batch()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for step in range(30):
        optimiser.zero_grad()
        loss = model.loss(batch, keys=torch.arange(4) + 4 * step).objective()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_mixed_precision_gives_close_losses_and_float32_gradients():
    model, batch = model_of().train(), make_batch()
    keys = torch.arange(4)
    exact = model.loss(batch, keys=keys).objective()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model.loss(batch, keys=keys).objective()
    rough.backward()
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.1)
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


def test_transposed_copies_follow_the_weights() -> None:
    """Copies are kept between captions; a changed, copied or retrained model must not write with old ones."""
    model, regions = model_of(), make_regions(2)
    before = written(model, regions, 40)[1]
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)
    after = written(model, regions, 40)[1]
    assert not torch.allclose(before, after)
    fresh = model_of()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(after, written(fresh, regions, 40)[1])
    assert torch.equal(before, written(twin, regions, 40)[1])
