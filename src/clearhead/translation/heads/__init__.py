"""Probes of heads, and when in training heads specialize."""
