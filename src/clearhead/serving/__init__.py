"""Attention of live requests of an inference server: a plugin for vLLM."""
