"""What is true and how fast: compares and times callables.

Nothing here compiles a kernel or draws a table: functions take callables and
return the frozen results of :mod:`kernels.evaluate.result`.
"""
