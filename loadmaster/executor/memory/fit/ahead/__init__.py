"""Work ahead of a fit: plans in a thread of their own, compilations in processes of their own."""
