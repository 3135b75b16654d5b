"""Translators: from priorities to nice values and shares, pure."""
