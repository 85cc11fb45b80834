"""Private names of PyTorch that the executor uses, and a list of the attributes that it replaces.

No other module names one. Each entry says what it is and why the public API does not do. All are in PyTorch 2.11 to
2.14; an entry that is not in all of these says so. To adapt to a new PyTorch, run ``tests/executor/torch_private``,
mend what fails here, and delete the workarounds whose tests say that they may go.

``dynamo`` loads Dynamo, ``inductor`` loads the compiler, which takes seconds: import these only where they are used.
The other modules load next to nothing that ``import torch`` has not loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from loadmaster.errors import TESTED_TORCH, LoadmasterError


class TorchVersionError(LoadmasterError, ImportError):
    """Error for a PyTorch that lacks something private that Loadmaster uses."""


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turn errors about names that this PyTorch lacks into errors that name its version and the remedy."""
    try:
        yield
    except TorchVersionError:
        raise
    except (ImportError, AttributeError) as error:
        raise TorchVersionError(
            f"PyTorch {torch.__version__} lacks something that Loadmaster uses: {error}. "
            f"Install PyTorch {' to '.join(TESTED_TORCH)}, or a newer Loadmaster."
        ) from error
