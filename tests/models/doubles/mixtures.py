"""Mixtures of experts as people write them, small and untrained: each has its own way to give tokens to experts."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDE, EXPERTS, CHOSEN = 16, 4, 2


class Mixture(nn.Module):
    """`[n, 8]` or `[n, steps, 8]` -> `[n, 3]`; `mix` is what a kind of mixture does with tokens `[tokens, WIDE]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router = nn.Linear(8, WIDE), nn.Linear(WIDE, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE)) for _ in range(EXPERTS)
        )
        self.last = nn.Linear(WIDE, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.first(x)
        mixed = self.mix(tokens.reshape(-1, WIDE)).view(tokens.shape)
        found: Tensor = self.last(mixed if x.ndim == 2 else mixed.mean(1))
        return found

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and chosen experts of each token, `[tokens, CHOSEN]`."""
        shares, chosen = self.router(tokens).softmax(-1).topk(CHOSEN, -1)
        return shares / shares.sum(-1, keepdim=True), chosen

    def mix(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError


class Scattered(Mixture):
    """Every expert computes every token; shares are scattered to their experts."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        by_expert = torch.zeros(tokens.shape[0], EXPERTS).scatter_(1, chosen, shares)
        return (torch.stack([expert(tokens) for expert in self.experts], 1) * by_expert.unsqueeze(-1)).sum(1)


class Masked(Mixture):
    """Logits of experts that were not chosen are minus infinity."""

    def mix(self, tokens: Tensor) -> Tensor:
        logits = self.router(tokens)
        top, chosen = logits.topk(CHOSEN, -1)
        shares = torch.full_like(logits, float("-inf")).scatter(-1, chosen, top).softmax(-1)
        mixed = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            mixed += shares[:, at : at + 1] * expert(tokens)
        return mixed


class OneHot(Mixture):
    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        by_expert = (functional.one_hot(chosen, EXPERTS) * shares.unsqueeze(-1)).sum(1)
        return (torch.stack([expert(tokens) for expert in self.experts], 1) * by_expert.unsqueeze(-1)).sum(1)


class Dispatched(Mixture):
    """Tokens are put into places of each expert by einsum, as GShard and Switch do."""

    def mix(self, tokens: Tensor) -> Tensor:
        share, chosen = self.router(tokens).softmax(-1).max(-1)
        of_expert = functional.one_hot(chosen, EXPERTS)
        place = (of_expert.cumsum(0) * of_expert - 1).clamp(min=0).amax(-1)
        sent = (of_expert.unsqueeze(-1) * functional.one_hot(place, tokens.shape[0]).unsqueeze(1)).float()
        taken = torch.einsum("nec,nw->ecw", sent, tokens)
        made = torch.stack([expert(taken[at]) for at, expert in enumerate(self.experts)])
        found: Tensor = torch.einsum("nec,ecw->nw", sent, made) * share.unsqueeze(-1)
        return found


class Selected(Mixture):
    """Each expert gets its own tokens by `torch.where`, and adds to them by `index_add_`, unless it has none."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            token, place = torch.where(chosen == at)
            if token.numel() == 0:
                continue
            mixed.index_add_(0, token, expert(tokens[token]) * shares[token, place].unsqueeze(-1))
        return mixed


class Mixtral(Mixture):
    """The loop of Mixtral's first published block."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        of_expert = functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for at, expert in enumerate(self.experts):
            place, token = torch.where(of_expert[at])
            state = tokens[None, token].reshape(-1, WIDE)
            mixed.index_add_(0, token, expert(state) * shares[token, place, None])
        return mixed


class Nonzero(Mixture):
    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            token = (chosen == at).any(-1).nonzero().squeeze(-1)
            share = (shares * (chosen == at)).sum(-1)
            mixed = mixed.index_add(0, token, expert(tokens.index_select(0, token)) * share[token].unsqueeze(-1))
        return mixed


class Added(Mixture):
    """`mixed[rows] += ...`, which reads the rows and writes them."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            token, place = (chosen == at).nonzero(as_tuple=True)
            mixed[token] += expert(tokens[token]) * shares[token, place, None]
        return mixed


class ByMask(Mixture):
    """Rows are read and written by a mask, `if mask.any()`."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            mask = (chosen == at).any(-1)
            if mask.any():
                share = (shares * (chosen == at)).sum(-1, keepdim=True)
                mixed[mask] += share[mask] * expert(tokens[mask])
        return mixed


class One(Mixture):
    """One expert for each token, whose answer takes the token's place."""

    def mix(self, tokens: Tensor) -> Tensor:
        share, chosen = self.router(tokens).softmax(-1).max(-1)
        mixed = tokens.clone()
        for at, expert in enumerate(self.experts):
            mixed[chosen == at] = expert(tokens[chosen == at])
        found: Tensor = mixed * share.unsqueeze(-1)
        return found


class Stacked(Mixture):
    """Experts as weights `[EXPERTS, ...]`, which ranks can divide."""

    def __init__(self) -> None:
        super().__init__()
        del self.experts
        self.wide = nn.Parameter(torch.randn(EXPERTS, 8 * WIDE, WIDE) / WIDE)
        self.back = nn.Parameter(torch.randn(EXPERTS, WIDE, 8 * WIDE) / WIDE)

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        by_expert = torch.zeros(tokens.shape[0], EXPERTS).scatter(1, chosen, shares)
        made = functional.gelu(torch.bmm(self.wide, tokens.t().expand(EXPERTS, -1, -1)))
        made = torch.bmm(self.back, made).transpose(1, 2)
        return (made * by_expert.t().unsqueeze(-1)).sum(0)


class Gathered(Stacked):
    """Each token takes the weights of its experts."""

    def mix(self, tokens: Tensor) -> Tensor:
        shares, chosen = self.route(tokens)
        made = functional.gelu(torch.einsum("nkow,nw->nko", self.wide[chosen], tokens))
        return (torch.einsum("nkwo,nko->nkw", self.back[chosen], made) * shares.unsqueeze(-1)).sum(1)


MIXTURES: dict[str, Callable[[], Mixture]] = {
    "scattered": Scattered,
    "masked": Masked,
    "one-hot": OneHot,
    "dispatched": Dispatched,
    "selected": Selected,
    "mixtral": Mixtral,
    "nonzero": Nonzero,
    "added": Added,
    "by mask": ByMask,
    "one": One,
    "stacked": Stacked,
    "gathered": Gathered,
}


def build_mixture(kind: str) -> Mixture:
    """A mixture in evaluation mode, from a seed."""
    torch.manual_seed(3)
    made = MIXTURES[kind]()
    made.eval()
    return made
