"""Router between two language models by the prompt's text: expected gain of the strong model.

Rule: one number per prompt, the expected gain (strong right minus weak right, -1..1), learned from recorded outcomes;
the same deferral figures as everywhere are taken from it. No prompt is scored by a router that saw it or its twin.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from models.forge.evaluation.outcomes import Flags, Floats, Outcomes, check_outcomes

_OPTION = re.compile(r"\n[A-D]\. (.*)")
_NUMERIC = re.compile(r"[-$\d.,/% ]+")
_TOKEN = re.compile(r"\w+|[^\w\s]")  # signs are words: formulas and blanks tell
_WORDS: dict[str, Any] = {"ngram_range": (1, 2), "sublinear_tf": True, "min_df": 2}
_PASSAGE = 300  # letters: prompts that begin alike for so long ask about the same text
_TOPICS = 128
_NEAREST = (30, 100, 300)
_TREES = 100


class RecordedPrompts(NamedTuple):
    """Prompts, and whether the weak and the strong model answered each rightly."""

    prompts: Sequence[str]
    weak_right: Flags
    strong_right: Flags

    @property
    def gain(self) -> Floats:
        return self.strong_right.astype(np.float64) - self.weak_right

    def select_rows(self, chosen: npt.NDArray[np.intp]) -> "RecordedPrompts":
        return RecordedPrompts(
            [self.prompts[i] for i in chosen.tolist()], self.weak_right[chosen], self.strong_right[chosen]
        )


class PromptRouter:
    """Words (two linear models), topics and neighbours (trees), averaged by their spread over the training prompts.

    The gain itself is learned, not "the weak one is wrong": where both are wrong, asking gains nothing (Jitkrittum et
    al. 2023, on when confidence alone misleads deferral; Ong et al. 2024 for the replay).
    """

    def __init__(self, recorded: RecordedPrompts, seed: int = 0) -> None:
        self._words = TfidfVectorizer(tokenizer=_TOKEN.findall, token_pattern=None, **_WORDS)
        seen = self._words.fit_transform(recorded.prompts)
        gain = recorded.gain
        self._wins, self._losses = _OutcomeModel(seen, gain > 0), _OutcomeModel(seen, gain < 0)
        self._ridge = Ridge(alpha=10.0, solver="sparse_cg", tol=1e-3).fit(seen, gain)
        self._places = TruncatedSVD(min(_TOPICS, seen.shape[1] - 1), n_iter=3, random_state=seed).fit(seen)
        self._neighbours = _NeighbourModel(self._topics(seen), recorded)
        self._trees = ExtraTreesRegressor(_TREES, min_samples_leaf=8, max_features=0.1, random_state=seed)
        self._trees.fit(self._dense(seen, recorded.prompts, first=1), gain)

    def gains(self, prompts: Sequence[str]) -> Floats:
        """`[n]`: the higher, the more the strong model is worth its price."""
        seen = self._words.transform(prompts)
        odds = self._wins.predict_share(seen) - self._losses.predict_share(seen)
        trees = self._trees.predict(self._dense(seen, prompts, first=0))
        return np.asarray(odds + self._ridge.predict(seen) + 2 * trees) / 4

    def _topics(self, seen: csr_matrix) -> Floats:
        return np.asarray(normalize(self._places.transform(seen)))

    def _dense(self, seen: csr_matrix, prompts: Sequence[str], first: int) -> Floats:
        topics = self._topics(seen)
        return np.hstack(
            [topics, self._neighbours.means(topics, first), [describe_prompt(prompt) for prompt in prompts]]
        )


class _OutcomeModel:
    """Of one outcome, by its words; where it was always or never seen, as often as it was seen."""

    def __init__(self, seen: csr_matrix, happened: Flags) -> None:
        self._share = float(happened.mean())
        mixed = 0 < self._share < 1
        self._model = LogisticRegression(C=1.0, max_iter=200).fit(seen, happened) if mixed else None

    def predict_share(self, seen: csr_matrix) -> Floats:
        if self._model is None:
            return np.full(seen.shape[0], self._share)
        return np.asarray(self._model.predict_proba(seen)[:, 1])


class _NeighbourModel:
    """Of the nearest training prompts by topic: how often each model was right, and the gain."""

    def __init__(self, topics: Floats, recorded: RecordedPrompts) -> None:
        self._most = min(_NEAREST[-1], len(topics) - 1)
        self._index = NearestNeighbors(n_neighbors=self._most + 1).fit(topics)
        self._known = np.stack([recorded.gain, recorded.weak_right, recorded.strong_right], 1)

    def means(self, topics: Floats, first: int) -> Floats:
        """`first` = 1 for the training prompts themselves: none is its own neighbour."""
        nearest = self._index.kneighbors(topics, return_distance=False)[:, first : first + self._most]
        return np.hstack([self._known[nearest[:, :count]].mean(1) for count in _NEAREST])


def describe_prompt(prompt: str) -> list[float]:
    """What a prompt looks like, whatever it is about: lengths, digits, signs, options."""
    question = prompt.partition("\nA.")[0]
    options = _OPTION.findall(prompt)
    lengths = [len(option) for option in options] or [0]
    words = question.split()
    signs = [float(question.count(sign)) for sign in ("\n", "_", "=", "|", ",", '"', "^", "\\", "$")]
    return [
        float(len(question)),
        float(len(words)),
        len(set(question.lower().split())) / max(1, len(words)),
        sum(map(len, words)) / max(1, len(words)),
        float(np.mean(lengths)),
        float(np.std(lengths)),
        float(sum(letter.isdigit() for letter in question)),
        float(sum(_NUMERIC.fullmatch(option) is not None for option in options)),
        sum(letter.isupper() for letter in question) / max(1, len(question)),
        float(question.rstrip().endswith("?")),
        float(" not " in question.lower() or "except" in question.lower()),
        *signs,
    ]


def group_twins(prompts: Sequence[str]) -> npt.NDArray[np.intp]:
    """A group number per prompt: equal ones, and those about the same long passage, share it."""
    begins = [re.sub(r"\W+", " ", prompt.lower())[:_PASSAGE] for prompt in prompts]
    return np.unique(begins, return_inverse=True)[1]


def draw_folds(prompts: Sequence[str], count: int, seed: int) -> npt.NDArray[np.intp]:
    """The fold of each prompt, by lot; twins are in one fold."""
    group = group_twins(prompts)
    return np.asarray(np.random.default_rng(seed).permutation(group.max() + 1)[group] % count)


def cross_fit_gains(recorded: RecordedPrompts, count: int = 5, seed: int = 0) -> Floats:
    """`[n]` gains, each from a router that was fitted on the other folds."""
    fold = draw_folds(recorded.prompts, count, seed)
    gains = np.zeros(len(fold))
    for number in range(count):
        out = np.flatnonzero(fold == number)
        router = PromptRouter(recorded.select_rows(np.flatnonzero(fold != number)), seed)
        gains[out] = router.gains(recorded.select_rows(out).prompts)
    return gains


def route_prompts(gains: Floats, recorded: RecordedPrompts) -> Outcomes:
    """As any pair of edge and hub: confidence 1 for the least gain, falling by rank."""
    ranks = np.unique(-gains, return_inverse=True)[1].astype(np.float64)
    return check_outcomes(Outcomes(ranks / max(1.0, ranks.max()), recorded.weak_right, recorded.strong_right))
