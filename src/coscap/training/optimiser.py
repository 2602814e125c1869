"""The optimiser, its state as named tensors (never a pickle), clipping, and the moving average of the weights."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from coscap.training.config import Clip, Optimiser


def build_optimiser(config: Optimiser, model: nn.Module) -> torch.optim.Optimizer:
    """Sgd decays every parameter, as the paper does; adamw only matrices, not biases and scales."""
    if config.name == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `parameter:item` tensors, for instance `decoder.out.weight:exp_avg`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for item, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}:{item}"] = value
    return tensors


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave; through load_state_dict, which moves each to its device."""
    number: dict[Tensor, int] = {}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            number[parameter] = len(number)
    names = {name: number[parameter] for name, parameter in model.named_parameters() if parameter in number}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, item = key.rpartition(":")
        state.setdefault(names[name], {})[item] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def clip_gradients(clip: Clip | None, model: nn.Module) -> Tensor:
    """Scale the gradients down where they are too long; the norm over all parameters before that."""
    norms = []
    for parameters in _clip_groups(clip, model):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            continue
        norm = nn.utils.get_total_norm(gradients)
        if clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, clip.norm, norm)
        norms.append(norm)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _clip_groups(clip: Clip | None, model: nn.Module) -> list[list[nn.Parameter]]:
    if clip is None or clip.scope == "global":
        return [list(model.parameters())]
    groups = [list(child.parameters()) for child in model.children()]
    own = list(model.parameters(recurse=False))
    return [group for group in [own, *groups] if group]


def moving_average(model: nn.Module, decay: float, step: int = 0) -> AveragedModel:
    """An exponential moving average of the weights that has seen `step` updates. Update n makes it
    d * average + (1 - d) * weights with d = min(decay, (1 + n) / (10 + n)), so that the first steps are forgotten."""

    @torch.no_grad()
    def update(averages: list[Tensor], weights: list[Tensor], count: Tensor | int) -> None:
        n = int(count)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + n) / (10 + n)))

    averaged = AveragedModel(model, multi_avg_fn=update)  # type: ignore[arg-type]
    averaged.n_averaged.fill_(step + 1)  # the weights that it begins with count as averaged
    return averaged
