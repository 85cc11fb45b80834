"""Small neural network that predicts what ``loadmaster.models.index.predictor`` predicts, to compare the two.

After [Shah23], section 6.3.3: the keys as a picture go through convolutions; with features of the trace and of the
configuration they go through a few layers. It answers with three quantiles of the logarithm of every
figure, and learns by their loss. The structure has an embedding; parameters are logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from loadmaster.executor.index.fit import Ran
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray
from loadmaster.models.index.features import Features
from loadmaster.models.index.predictor import FIGURES, moved_keys
from loadmaster.models.index.problem import Figure

STRUCTURES = ("gapped-array", "fragmented-log", "sorted-array", "hash-table")
QUANTILES = (0.1, 0.5, 0.9)
STEPS, BATCH_ROWS, LEARNING_RATE, WEIGHT_DECAY = 1500, 512, 2e-3, 1e-2


class Layers(nn.Module):
    """Layers of the network: pictures, numbers and structures in; [rows, figures, quantiles] out."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(8 * 4 * 4, 8),
        )  # fmt: skip
        self.structure = nn.Embedding(len(STRUCTURES), 8)
        self.rest = nn.Sequential(
            nn.Linear(8 + 8 + numbers, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.GELU(),
            nn.Linear(64, len(FIGURES) * len(QUANTILES)),
        )  # fmt: skip

    def forward(self, pictures: torch.Tensor, numbers: torch.Tensor, structures: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([self.picture(pictures), self.structure(structures), numbers], dim=1)
        return self.rest(seen).unflatten(1, (len(FIGURES), len(QUANTILES)))


def numbers_of(of: Features, configuration: Configuration) -> list[float]:
    """Features of trace and configuration, as the network's numbers."""
    keys, operations = max(1, of.keys), max(1.0, of.operations)
    log = configuration if isinstance(configuration, FragmentedLog) else FragmentedLog(4, 1, 1)
    array = configuration if isinstance(configuration, GappedArray) else GappedArray(insert_share=0.0)
    return [
        math.log2(keys),
        math.log2((keys + of.inserts) / keys),
        math.log2(of.local_keys),
        math.log2(max(1.0, keys / of.global_keys)),
        of.hot_share,
        *(count / operations for count in (of.inserts, of.erases, of.scans)),
        *(math.log2(n) for n in (log.fragment_keys, log.most_fragments, log.first_fragments)),
        *(8.0 if bound is None else math.log2(bound) for bound in (array.most_searches, array.most_shifts)),
        array.insert_share,
    ]


class Network:
    """Predictor by the network, learned from some traces and asked about others."""

    def __init__(self, seen: Sequence[Ran]) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        rows = [(ran, row) for ran in seen for row in ran.rows]
        numbers = np.array([numbers_of(ran.features, row.configuration) for ran, row in rows])
        told = [[getattr(row, name) or math.nan for name in FIGURES] for _, row in rows]
        targets = torch.tensor(np.log(np.array(told)), dtype=torch.float32)
        self._scale = numbers.mean(0), numbers.std(0) + 1e-6
        self._targets = targets.nanmean(0), torch.stack([t[~t.isnan()].std() for t in targets.T])
        wanted = (targets - self._targets[0]) / self._targets[1]
        inputs = self._inputs([ran for ran, _ in rows], [row.configuration for _, row in rows], numbers)
        self._layers = Layers(numbers.shape[1])
        self._learn(inputs, wanted)
        self._known: dict[tuple[int, Configuration], dict[str, Figure]] = {}

    def _inputs(
        self, traces: Sequence[Ran], configurations: Sequence[Configuration], numbers: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pictures = torch.tensor(np.array([ran.picture for ran in traces]) * 16, dtype=torch.float32)[:, None]
        scaled = torch.tensor((numbers - self._scale[0]) / self._scale[1], dtype=torch.float32)
        return pictures, scaled, torch.tensor([STRUCTURES.index(c.structure) for c in configurations])

    def _learn(self, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], wanted: torch.Tensor) -> None:
        optimizer = torch.optim.AdamW(self._layers.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
        there, quantiles = ~wanted.isnan(), torch.tensor(QUANTILES)
        for _ in range(STEPS):
            batch = torch.randint(len(wanted), (BATCH_ROWS,))
            over = wanted[batch].nan_to_num()[..., None] - self._layers(*(part[batch] for part in inputs))
            loss = torch.maximum(quantiles * over, (quantiles - 1) * over)[there[batch]].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        self._layers.eval()

    def figures(self, ran: Ran, configuration: Configuration) -> dict[str, Figure]:
        """Predict the figures of a configuration, by the names of FIGURES."""
        if (id(ran), configuration) not in self._known:
            asked = list(dict.fromkeys([*(row.configuration for row in ran.rows), configuration]))
            numbers = np.array([numbers_of(ran.features, one) for one in asked])
            with torch.no_grad():
                told = self._layers(*self._inputs([ran] * len(asked), asked, numbers))
            values = (told * self._targets[1][:, None] + self._targets[0][:, None]).sort(-1).values.exp().tolist()
            for one, of_figures in zip(asked, values, strict=True):
                keys = ran.features.keys + ran.features.inserts
                known = {
                    name: Figure(middle, lower, upper)
                    for name, (lower, middle, upper) in zip(FIGURES, of_figures, strict=True)
                }
                change, moved = known["change_ns"], moved_keys(one, keys) / 1e3
                known["pause_us"] = Figure(*(v and v * moved for v in (change.expected, change.lower, change.upper)))
                self._known[id(ran), one] = known
        return self._known[id(ran), configuration]
