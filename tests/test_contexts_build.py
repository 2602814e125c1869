"""From a small data set to neighbours, pseudo captions and novel objects, with the real parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coscap.analysis.apart import compare
from coscap.contexts.build import ContextSettings, build_contexts
from coscap.contexts.examples import examples
from coscap.contexts.folder import Neighbours, open_neighbours
from coscap.contexts.pseudo import BothTerms, NovelTerm, PseudoTerm, slot_tokens
from coscap.data.loader import Loader
from coscap.data.prepared import Prepared
from coscap.errors import UserError
from coscap.models import CosCvae, ModelConfig
from coscap.models.pseudo import pseudo_loss
from coscap.seam import Caption
from coscap.text import load_classes
from coscap.text.vocabulary import SLOT, SLOTS
from coscap.training.config import Pseudo
from coscap.vision.store import RegionStore
from data_made import WIDTH, made_prepared, made_store

SETTINGS = ContextSettings(k=3, epochs=2, batch=8, width=8, recall_pictures=5)
World = tuple[Path, Prepared, RegionStore, Neighbours]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("contexts")
    prepared = made_prepared(folder / "data", captionless=6)
    store = made_store(folder / "regions.h5", [int(i) for i in prepared.image_ids])
    build_contexts(prepared, store, folder / "contexts", SETTINGS, say=lambda line: None)
    return folder, prepared, store, open_neighbours(folder / "contexts", prepared)


def make_model(prepared: Prepared, store: RegionStore) -> CosCvae:
    torch.manual_seed(0)
    names = ("attention_lstm", "language_lstm", "attention_width", "context_latent", "object_latent")
    sizes = dict.fromkeys(names, 8)
    return CosCvae(ModelConfig(vocabulary=len(prepared.vocabulary), region_width=WIDTH, **sizes))


def test_neighbours_are_training_contexts_of_other_pictures_that_fit(world: World) -> None:
    _, prepared, store, neighbours = world
    assert len(neighbours.images) == len(prepared)  # pictures without captions have neighbours, too
    train = set(prepared.captions_in("train").tolist())
    found = 0
    for image in neighbours.images.tolist():
        own = {tuple(prepared.context(c).tolist()) for c in prepared.captions_of(image)}
        room = int((np.asarray(store.get(int(prepared.image_ids[image])).labels) >= 0).sum())
        near = neighbours.of(image).tolist()
        contexts = [tuple(prepared.context(c).tolist()) for c in near]
        assert len(set(contexts)) == len(contexts)
        for caption, context in zip(near, contexts, strict=True):
            slots = sum(word in (SLOT, SLOTS) for word in context)
            assert caption in train and context not in own and 1 <= slots <= room
            found += 1
    assert found > len(prepared)
    assert neighbours.manifest["epochs"][-1]["loss"] > 0


def test_neighbours_of_other_data_are_refused(world: World, tmp_path: Path) -> None:
    folder, *_ = world
    other = made_prepared(tmp_path / "other", pictures=12)
    with pytest.raises(UserError, match="another data set"):
        open_neighbours(folder / "contexts", other)
    with pytest.raises(UserError, match="coscap contexts"):
        open_neighbours(tmp_path, other)


def test_what_was_found_before_is_used_again(world: World) -> None:
    folder, prepared, store, neighbours = world
    told: list[str] = []
    again = build_contexts(prepared, store, folder / "contexts", SETTINGS, say=told.append)
    assert told == [f"{folder / 'contexts'} holds the neighbours of these pictures already."]
    assert np.array_equal(again.captions, neighbours.captions)
    told.clear()
    build_contexts(
        prepared, store, folder / "other", SETTINGS.model_copy(update={"seed": 5}), say=told.append
    )
    assert len(told) == SETTINGS.epochs + 1


def test_both_terms_join_captioned_and_uncaptioned_pictures(world: World) -> None:
    _, prepared, store, neighbours = world
    model = make_model(prepared, store)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    batch = next(iter(Loader(prepared, store, "train", 8, 1)))
    keys = torch.arange(8) * 4
    paired, novel = PseudoTerm(prepared, neighbours, names), NovelTerm(prepared, store, neighbours, names)
    assert set(novel.images.tolist()) <= set(prepared.images("unpaired").tolist())
    drawn, asked = novel.draw(keys)
    assert asked is None
    assert not (drawn.image_ids[:, None] == batch.image_ids).any()
    alone = paired(model, batch, keys)
    assert not alone.kl_object.any()
    both = BothTerms(paired, novel)(model, batch, keys)
    assert len(both.reconstruction) >= len(alone.reconstruction)
    torch.testing.assert_close(both.reconstruction[: len(alone.reconstruction)], alone.reconstruction)
    weaker = novel(model, batch, keys)
    assert len(weaker.kl_object) > 0 and (weaker.kl_object > 0).all()
    both.objective().backward()


def test_a_share_of_the_pseudo_captions_counts_for_all(world: World) -> None:
    _, prepared, store, neighbours = world
    model = make_model(prepared, store)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    batch = next(iter(Loader(prepared, store, "train", 16, 1)))
    whole, half = (PseudoTerm(prepared, neighbours, names, share=share) for share in (1.0, 0.5))
    counts = []
    for start in range(0, 1600, 16):
        keys = torch.arange(start, start + 16)
        exchanged = half.exchange(batch, keys)
        counts.append(0 if exchanged is None else len(exchanged[1]))
    kept = whole.exchange(batch, keys)
    assert kept is not None and 0.4 < sum(counts) / (100 * len(kept[1])) < 0.6
    some, every = half(model, batch, keys), whole(model, batch, keys)
    mine = torch.isin(kept[1], half.exchange(batch, keys)[1])  # type: ignore[index]
    torch.testing.assert_close(some.reconstruction, 2 * every.reconstruction[mine])
    torch.testing.assert_close(some.free_context, 2 * every.free_context[mine])


def test_novel_pictures_are_needed_for_the_novel_term(tmp_path: Path, world: World) -> None:
    _, _, store, _ = world
    prepared = made_prepared(tmp_path / "data", captionless=0)
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    none = Neighbours({}, np.zeros(0, np.int64), np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32))
    with pytest.raises(UserError, match="unpaired"):
        NovelTerm(prepared, store, none, names)


def test_examples_fill_every_slot(world: World) -> None:
    _, prepared, store, neighbours = world
    model = make_model(prepared, store)
    shown = examples(prepared, store, neighbours, neighbours.images[:6].tolist(), model)
    assert any(example.pseudo for example in shown)
    for example in shown:
        assert len(example.pseudo) == len(example.contexts)
        assert all("<s" in context for context in example.contexts)
        assert not any("<s" in caption for caption in example.pseudo)


@pytest.mark.parametrize("detections", [None, 1])
def test_examples_are_filled_as_training_fills_them(
    world: World, detections: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = set()

    def spy(*given: Any, **more: Any) -> Any:
        ways.add(more["feed"])
        return pseudo_loss(*given, **more)

    monkeypatch.setattr("coscap.contexts.pseudo.pseudo_loss", spy)
    _, prepared, store, neighbours = world
    model = make_model(prepared, store)
    model.config = model.config.model_copy(update={"detections": detections})
    model.regions.config = model.config
    names = slot_tokens(store.recipe, prepared.classes, prepared.vocabulary)
    term = PseudoTerm(prepared, neighbours, names)
    batches = Loader(prepared, store, "train", 8, 1, detections=detections, grid=model.config.grid)
    shown = 0
    for batch in batches:
        keys = torch.zeros(len(batch.rows), dtype=torch.long)  # the first neighbour of each, the first noise
        exchanged = term.exchange(batch, keys)
        if exchanged is None:
            continue
        _, words = term.pseudo(model.eval(), *exchanged)
        ids = batch.image_ids[exchanged[0].rows].tolist()
        images = [int(np.searchsorted(prepared.image_ids, image)) for image in ids]
        for example, row in zip(
            examples(prepared, store, neighbours, images, model), words.tolist(), strict=True
        ):
            assert example.pseudo[0] == prepared.vocabulary.decode(row)
            shown += 1
    assert shown > 10 and ways == {Pseudo.model_fields["feed"].default}


def test_what_two_captions_share() -> None:
    def caption(text: str) -> Caption:
        return Caption(tuple(text.split()), 0.0, 0, np.zeros((0, 0), np.float32))

    same = compare([(caption("a dog on a couch"), caption("a cat on a bed"))], load_classes("coco"))
    assert (same.objects_kept, same.context_kept, same.same_objects, same.same_context) == (
        0.0,
        1.0,
        0.0,
        1.0,
    )
    other = compare([(caption("a dog on a couch"), caption("the couch under a dog"))], load_classes("coco"))
    assert (other.objects_kept, other.same_objects, other.same_context) == (1.0, 1.0, 0.0)
    assert 0 < other.context_kept < 1
