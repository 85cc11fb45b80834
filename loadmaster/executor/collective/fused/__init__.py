"""One kernel per collective over symmetric memory, for the GPUs of one NVLink domain."""
