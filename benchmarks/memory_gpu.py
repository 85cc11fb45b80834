"""Figures of memory planning on one GPU, in one command that can be cut short and continued.

    python -m benchmarks.memory_gpu --out DIR                    everything, on a GPU host with the solvers
    python -m benchmarks.memory_gpu --out DIR --figures 1 5 --cases resnet50 --wall 560
    python -m benchmarks.memory_gpu --out DIR --report           only the figures, from DIR/rows.json
    python -m benchmarks.memory_gpu --out DIR --device cpu --small    a trial with small models

Figures: 1 plans against torch.compile's activation_memory_budget and checkpointing; 2 a sweep of budgets; 3 memory at
10 % overhead; 4 ablation; 5 what a budget above the peak costs, and how long capturing and planning takes. A step is
forward and backward, gradients dropped before it; no optimizer. Rows are in DIR/rows.json after each; where DIR is
empty a run goes on from the rows in benchmarks/results (not with --fresh). Rows that failed are measured again.
"""

from __future__ import annotations

from benchmarks.gpu import budgets, figures
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.session import Session, parser


def main() -> None:
    """Measure what is missing, and report."""
    p = parser(__doc__)
    p.add_argument("--figures", nargs="+", type=int, default=[1, 2, 3, 4, 5], choices=range(1, 6))
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    a = p.parse_args()
    session = Session("memory_gpu", a)
    session.measure(budgets.wanted(a.figures, a.cases, small=a.small))
    found = figures.all_figures(session.rows)
    print(figures.as_text(found))
    session.write({**figures.NOTES, **found})


if __name__ == "__main__":
    main()
