"""Graph networks: programs over nodes, edges and relations, and how they are run."""
