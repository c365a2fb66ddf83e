"""The attention operator: call record, masks, backends and their dispatch."""
