"""Training that begins with another model: the same one, or an up-down captioner that is given more."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coscap.data import Prepared
from coscap.errors import UserError
from coscap.models import ModelConfig
from coscap.models.hub import Pretrained, load_pretrained
from coscap.models.updown import UpDown
from coscap.vision.published import Store
from coscap.vision.regions import Recipe

FEATURES = "regions.project.weight"  # its first columns are those of the features
LAYERS = (
    "regions.layers"  # untrained ones change nothing, so that a model without them can begin one with them
)

logger = logging.getLogger("coscap.training")


def weights_to_begin_with(
    name: str,
    config: ModelConfig,
    own: Mapping[str, Tensor],
    prepared: Prepared,
    store: Store,
    anew: Sequence[str] = (),
) -> dict[str, Tensor]:
    """The weights in `name` for a model of this configuration; `own` are those that were drawn for it.

    An up-down captioner can begin any other with the same decoder: what is made of latents, or chooses what is copied,
    stays as it was drawn. Inputs that latents join have them last, so the columns of the words and regions come first.
    Parts named in `anew` stay as they were drawn, and so do layers of the regions that the other has not. Where
    features are scaled differently, their columns are, too.
    """
    for part in anew:
        if not any(_belongs(key, part) for key in own):
            known = ", ".join(sorted({key.partition(".")[0] for key in own}))
            raise UserError(f"field start_anew: the model has no part {part}; its parts are {known}.")
    loaded = load_pretrained(name)
    loaded.check_vocabulary(prepared.vocabulary)
    if "regions" not in anew:
        check_start(loaded, store.recipe)
    given = {
        key: weight
        for key, weight in loaded.model.state_dict().items()
        if not any(_belongs(key, part) for part in anew)
    }
    if config.region_projection and FEATURES in given:  # other units, the same function
        rescaled = given[FEATURES].clone()  # (projection, F + class + box)
        rescaled[:, : config.region_width] *= loaded.model.config.region_scale / config.region_scale
        given[FEATURES] = rescaled
    more = isinstance(loaded.model, UpDown) and config.kind != loaded.model.config.kind
    begun = {
        key: mine
        if any(_belongs(key, part) for part in anew)
        else _joined(given.get(key), mine, more or _belongs(key, LAYERS))
        for key, mine in own.items()
    }
    other = [key for key, weight in begun.items() if weight is None] + [
        key for key in given if key not in own
    ]
    if other:
        raise UserError(
            f"field start: the model in {name} has another shape ({other[0]}) than the one to be trained; "
            "give `model` the sizes of that model."
        )
    return {key: weight for key, weight in begun.items() if weight is not None}


def check_start(loaded: Pretrained, recipe: Recipe) -> None:
    """The model's own regions, or the same ones seen by eyes that were tuned further: training goes on with those."""
    before = loaded.recipe
    if (
        before is not None
        and before != recipe
        and replace(before, name=recipe.name) == recipe
        and before.words
    ):
        logger.warning(
            "%s saw regions of %s before, and learns those of %s from now on",
            loaded.source,
            before.name,
            recipe.name,
        )
    else:
        loaded.check_recipe(recipe)


def _belongs(key: str, part: str) -> bool:
    return key == part or key.startswith(part + ".")


def _joined(given: Tensor | None, mine: Tensor, more: bool) -> Tensor | None:
    """A weight to begin with; None if the two do not fit. `more`: a model that has more than the one it begins with."""
    if given is None:
        return mine if more else None
    if given.shape == mine.shape:
        return given
    wider = given.ndim == mine.ndim == 2 and len(given) == len(mine) and given.shape[1] < mine.shape[1]
    return torch.cat([given.to(mine), mine[:, given.shape[1] :]], dim=1) if wider and more else None
