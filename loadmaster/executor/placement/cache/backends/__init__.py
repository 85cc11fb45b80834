"""Where a tensor cache puts what it takes from the device: pinned host memory, files, or an object of the user's."""
