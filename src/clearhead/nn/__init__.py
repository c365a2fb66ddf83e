"""Modules: multi-head attention, position encodings and key-value caches."""
