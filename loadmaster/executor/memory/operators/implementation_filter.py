"""Filter of what plans may choose from: the same where a model is captured and where its plan is applied."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.executor.memory.implementations import registry


@dataclass(frozen=True)
class ImplementationFilter:
    """The implementations that plans may choose from, next to those of PyTorch's own graph; all by default.

    For ablations, and for a model where one of them is not wanted. The operators of a step follow from it, and their
    fingerprint with them: a plan is refused where the filter is another than at its capture, if that changes any
    choice. Recomputation from saved statistics or seeds is not a choice, and stays.

    Attributes:
        exclude: names of registered alternatives to leave out.
        inline: whether a fused backward operator may compute the elementwise forward results that it reads again
            inside itself, from their inputs (Inductor only).
    """

    exclude: tuple[str, ...] = ()
    inline: bool = True

    def alternatives(self) -> tuple[registry.BackwardAlternative, ...]:
        """The registered alternatives that are left.

        Raises:
            InputError: a name to leave out is not registered.
        """
        return registry.alternatives(self.exclude)


EVERYTHING = ImplementationFilter()
