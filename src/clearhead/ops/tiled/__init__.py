"""Backend `streaming`: plain torch over tiles, in O(n) memory, on any device."""
