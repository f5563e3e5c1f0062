"""The parts of ``bench``: routes, forecasts, timers, a shape with every time, a line of the table."""
