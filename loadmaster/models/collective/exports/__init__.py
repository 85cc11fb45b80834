"""Algorithms in the formats of other runtimes: MSCCL XML and MSCCL++ execution plans."""
