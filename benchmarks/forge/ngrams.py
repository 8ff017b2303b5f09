"""Text classifier over hashed n-grams: feature hashing, the network and its training, without pretrained weights.

Rule: the net knows only n-grams that at least two training texts share; all others count as unknown, which makes a text
of unknown n-grams weak in every direction, and so doubtful. Bags of n-grams: Joulin et al. 2017 (fastText); weights by
rarity: Sparck Jones 1972. Training takes minutes on one core.

Rule: the hashing needs numpy and the standard library only, so that a device can do it; nothing is learnt there, so it
holds nothing of the training texts. The n-grams are (after lower-casing, every run of what is no letter, digit or
apostrophe being a gap):

- `w:` one, two and three neighbouring words, joined by a space, the text between a `<` and a `>` that count as words;
- `c:` two to five neighbouring characters of each word between two spaces: `c: pa`, `c:pay `.

An n-gram's number is 1 + CRC-32 of its UTF-8 bytes modulo (buckets - 1); 0 fills up. Each number counts once per text
(Weinberger et al. 2009, feature hashing; Bojanowski et al. 2017, words by their character n-grams). Any language has a
CRC-32: another client needs these fifteen lines, no file.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding_bag

BUCKETS = 1 << 17
LENGTH = 320  # numbers per text (one in a thousand has more); a long text loses characters of its last words
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_WORDS, _CHARACTERS = (1, 2, 3), (2, 3, 4, 5)

Ids = npt.NDArray[np.int64]


def encode_texts(texts: Sequence[str], buckets: int = BUCKETS, length: int = LENGTH) -> Ids:
    """Hashed n-grams of texts: `[n, length]` numbers 0..buckets - 1, zeros behind the last n-gram."""
    found = np.zeros((len(texts), length), np.int64)
    for row, text in zip(found, texts, strict=True):
        ids = list(dict.fromkeys(1 + zlib.crc32(gram.encode()) % (buckets - 1) for gram in iter_ngrams(text)))[:length]
        row[: len(ids)] = ids
    return found


def iter_ngrams(text: str) -> Iterator[str]:
    """The n-grams of one text, those of words first, shorter ones before longer ones."""
    words = _WORD.findall(text.lower())
    fenced = ["<", *words, ">"]
    for size in _WORDS:
        for start in range(len(fenced) - size + 1):
            yield "w:" + " ".join(fenced[start : start + size])
    for word in words:
        spaced = f" {word} "
        for size in _CHARACTERS:
            for start in range(len(spaced) - size + 1):
                yield "c:" + spaced[start : start + size]


EpochCallback = Callable[[int, float], None]


class NgramNetSizes(NamedTuple):
    """Sizes of the network.

    `rows`: n-grams known, row 0 stands for all others. `width`: of a text's vector; `hidden`: of the tail.
    """

    buckets: int
    rows: int
    width: int
    hidden: int
    labels: int


class NgramTraining(NamedTuple):
    """Training settings. `dropped`: share of a text's n-grams that are left out at each step; `smoothing` of labels."""

    epochs: int = 14
    batch: int = 256
    rate: float = 5e-3
    dropped: float = 0.3
    smoothing: float = 0.1
    seed: int = 5


class NgramNet(nn.Module):
    """Bag-of-n-grams classifier: `[n, length]` bucket numbers, 0 = nothing -> logits `[n, labels]`.

    A text is the sum of its n-grams' vectors, each weighted by rarity, over the length of all its weights (unknown
    n-grams count in that length, but have no vector). Two tails read it, a linear one and a deeper one; the answer is
    their mean.
    """

    row: Tensor
    rarity: Tensor

    def __init__(self, sizes: NgramNetSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.register_buffer("row", torch.zeros(sizes.buckets, dtype=torch.int32))
        self.register_buffer("rarity", torch.ones(sizes.rows))
        self.table = nn.Embedding(sizes.rows, sizes.width)
        nn.init.normal_(self.table.weight, std=2 / math.sqrt(sizes.width))
        self.bias = nn.Parameter(torch.zeros(sizes.width))
        self.straight = nn.Sequential(nn.Dropout(0.4), nn.Linear(sizes.width, sizes.labels))
        self.bent = nn.Sequential(
            *(nn.Dropout(0.4), nn.Linear(sizes.width, sizes.hidden), nn.GELU()),
            *(nn.Dropout(0.5), nn.Linear(sizes.hidden, sizes.hidden), nn.GELU()),
            *(nn.Dropout(0.5), nn.Linear(sizes.hidden, sizes.labels)),
        )

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.row[ids].long()
        weights = self.rarity[rows] * (ids > 0)
        weights = weights / weights.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        vector = torch.relu(torch.bmm(weights[:, None], self.table(rows))[:, 0] + self.bias)
        answer: Tensor = (self.straight(vector) + self.bent(vector)) / 2
        return answer


class NgramEnsemble(nn.Module):
    """Mean of several `NgramNet` that know the same n-grams: one wide table, and each member's own part of its row.

    The vector `[n, members * width]` of a text is the one narrow place, where the net may be cut. Members differ in
    their first weights and in what each step left out; their mean is right more often, and less sure where they
    disagree (Lakshminarayanan et al. 2017, deep ensembles).
    """

    row: Tensor
    rarity: Tensor

    def __init__(self, sizes: NgramNetSizes, members: int) -> None:
        super().__init__()
        self.sizes, self.members = sizes, members
        self.register_buffer("row", torch.zeros(sizes.buckets, dtype=torch.int32))
        self.register_buffer("rarity", torch.ones(sizes.rows))
        self.table = nn.Embedding(sizes.rows, members * sizes.width)
        self.bias = nn.Parameter(torch.zeros(members * sizes.width))
        tails = [NgramNet(sizes._replace(buckets=1, rows=1)) for _ in range(members)]
        self.straight = nn.ModuleList(tail.straight for tail in tails)
        self.bent = nn.ModuleList(tail.bent for tail in tails)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.row[ids].long()
        weights = self.rarity[rows] * (ids > 0)
        weights = weights / weights.square().sum(1, keepdim=True).sqrt().clamp_min(1e-6)
        vector = torch.relu(torch.bmm(weights[:, None], self.table(rows))[:, 0] + self.bias)
        parts = vector.chunk(self.members, 1)
        answers = [
            straight(part) + bent(part) for part, straight, bent in zip(parts, self.straight, self.bent, strict=True)
        ]
        return torch.stack(answers).mean(0) / 2

    def take_member(self, number: int, net: NgramNet) -> None:
        """Copy a trained net into the place of member `number`; all members are of the same n-grams."""
        columns = slice(number * self.sizes.width, (number + 1) * self.sizes.width)
        with torch.no_grad():
            self.row.copy_(net.row)
            self.rarity.copy_(net.rarity)
            self.table.weight[:, columns] = net.table.weight
            self.bias[columns] = net.bias
        self.straight[number].load_state_dict(net.straight.state_dict())
        self.bent[number].load_state_dict(net.bent.state_dict())


class NgramBags(NamedTuple):
    """Known n-grams of all texts in one row, with weights; text i has those from `starts[i]` to `starts[i + 1]`."""

    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]


def train_ngram_net(net: NgramNet, x: Ids, y: Ids, course: NgramTraining, tick: EpochCallback) -> None:
    """Train `net` in place, on one core. `tick` is called with (epochs done, mean loss of the last)."""
    torch.manual_seed(course.seed)
    _select_ngrams(net, x)
    bags, labels = _build_bags(net, x), torch.from_numpy(y)
    optimiser = torch.optim.Adam(net.parameters(), course.rate)
    steps = len(y) // course.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, course.rate, total_steps=steps * course.epochs, pct_start=0.15
    )
    net.train()
    for epoch in range(course.epochs):
        order = torch.randperm(len(y)).numpy()
        total = 0.0
        for step in range(steps):
            chosen = order[step * course.batch : (step + 1) * course.batch]
            loss = _compute_loss(net, bags, chosen, labels[chosen], course)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            total += loss.item()
        tick(epoch + 1, total / steps)
    with torch.no_grad():
        net.table.weight[0] = 0  # unknown n-grams have the zero vector
    net.eval()


def _select_ngrams(net: NgramNet, x: Ids) -> None:
    """Which buckets have a row: those most texts share, at least two; and how rare each is."""
    counts = np.bincount(x[x > 0], minlength=net.sizes.buckets)
    known = np.argsort(-counts, kind="stable")[: net.sizes.rows - 1]
    known = known[counts[known] >= 2]
    rarity = np.log((1 + len(x)) / (1 + np.concatenate([[0], counts[known]]))) + 1
    net.row[torch.from_numpy(known)] = torch.arange(1, len(known) + 1, dtype=torch.int32)
    net.rarity[: len(rarity)] = torch.from_numpy(rarity.astype(np.float32))


def _build_bags(net: NgramNet, x: Ids) -> NgramBags:
    rows = net.row.numpy()[x].astype(np.int64)
    weights = net.rarity.numpy()[rows] * (x > 0)
    weights /= np.sqrt((weights**2).sum(1, keepdims=True))
    known = rows > 0
    starts = np.concatenate([[0], known.sum(1).cumsum()])
    return NgramBags(rows[known], weights[known].astype(np.float32), starts)


def _compute_loss(net: NgramNet, bags: NgramBags, chosen: Ids, labels: Tensor, course: NgramTraining) -> Tensor:
    """Sum of both tails' losses: each is trained to answer alone."""
    vector = torch.relu(_sum_vectors(net, bags, chosen, course.dropped) + net.bias)
    losses = [
        cross_entropy(tail(vector), labels, label_smoothing=course.smoothing) for tail in (net.straight, net.bent)
    ]
    return losses[0] + losses[1]


def _sum_vectors(net: NgramNet, bags: NgramBags, chosen: Ids, dropped: float) -> Tensor:
    places = np.concatenate([np.arange(bags.starts[i], bags.starts[i + 1]) for i in chosen])
    lengths = bags.starts[chosen + 1] - bags.starts[chosen]
    weights = torch.from_numpy(bags.weights[places])
    weights = weights * (torch.rand_like(weights) > dropped) / math.sqrt(1 - dropped)
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()[:-1]]))
    rows = torch.from_numpy(bags.rows[places])
    return embedding_bag(rows, net.table.weight, offsets, mode="sum", per_sample_weights=weights)


@dataclass(frozen=True)
class NgramDropout:
    """Augmentation of texts: a random share of each text's n-grams is left out, drawn from the generator given."""

    share: float = 0.3

    def __call__(self, ids: Tensor, chance: torch.Generator) -> Tensor:
        kept = torch.rand(ids.shape, generator=chance) >= self.share
        return ids * kept
