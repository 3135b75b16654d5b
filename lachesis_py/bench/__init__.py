"""Side-by-side measurement of what the daemon costs."""
