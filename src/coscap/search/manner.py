"""The plain choices of a user, accurate and diverse, as settings of a search."""

from typing import Any

from coscap.errors import UserError
from coscap.seam import SearchModel
from coscap.search.config import SearchSettings

VARIETY = 0.5
# latent_temperature and variety: of what is shown if nothing is said, and of the two plain choices
USUAL, ACCURATE, DIVERSE = (0.65, VARIETY), (0.5, 0.1), (1.0, 0.9)


def manner(
    settings: SearchSettings, variety: float | None, accurate: bool, diverse: bool
) -> tuple[SearchSettings, float]:
    """Settings and variety under the two plain choices; what was given explicitly, or follows from one draw, stays."""
    if accurate and diverse:
        raise UserError(
            "accurate and diverse exclude each other; give one of them (--accurate or --diverse)."
        )
    if variety is not None and not 0 <= variety <= 1:
        raise UserError(f"variety is {variety}, and it goes from 0 (likeliest) to 1 (most different).")
    temperature, usual = ACCURATE if accurate else DIVERSE if diverse else USUAL
    if "latent_temperature" not in settings.model_fields_set:
        settings = settings.model_copy(update={"latent_temperature": temperature})
    return settings, usual if variety is None else variety


def for_model(settings: SearchSettings, model: SearchModel[Any], n: int) -> SearchSettings:
    """Settings under which a model can give n different captions.

    All draws of a model without latents are one caption. If no search was chosen, its words are drawn instead.
    """
    if n == 1 or model.latent_names or settings.search != "latent" or settings.do_sample:
        return settings
    if "search" in settings.model_fields_set or settings.draws is not None or settings.beams > 1:
        raise UserError(
            f"This model has no latents, so all {n} draws would be the same caption; draw words (--do-sample), "
            "or take --search beam or --search diverse."
        )
    return settings.model_copy(update={"do_sample": True})


def beam_settings(settings: SearchSettings) -> SearchSettings:
    """A beam at the means of the latents under the same constraints, no pair of words twice."""
    no_repeat = settings.no_repeat_ngram_size or 2
    changes = {
        "search": "beam",
        "latent_temperature": 0.0,
        "no_repeat_ngram_size": no_repeat,
        "num_beams": None,
    }
    return settings.model_copy(update=changes)
