"""The metric graph: definitions, windows over counters and the provider that resolves them."""
