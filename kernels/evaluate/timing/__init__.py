"""Clocks, timers and what their samples say."""
