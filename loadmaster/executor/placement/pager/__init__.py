"""Paging of storages: training under a byte limit that the whole state does not fit, by demand, prediction and plan.

``pager`` is what users enter; ``mode`` sees every operator; ``memory`` decides what is where, over ``copies``;
``steps`` learns the step and has it planned, ``schedule`` follows the plan, ``prefetch`` predicts where there is none;
``raw_access`` guards what goes past PyTorch's dispatcher.
"""
