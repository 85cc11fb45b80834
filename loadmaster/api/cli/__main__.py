"""``python -m loadmaster.api.cli``: the same as the ``loadmaster`` command."""

import sys

from loadmaster.api.cli import main

sys.exit(main())
