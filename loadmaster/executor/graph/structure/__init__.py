"""Graphs, homogeneous and heterogeneous: structure, data of nodes and edges, subgraphs, sampling, batches, files."""
