"""Worked examples: any attention calculation step by step with its real numbers, written out."""
