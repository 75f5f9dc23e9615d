"""Accuracy against work: a task file decoded under a grid of settings, measured, tabled and drawn.

`tasks` and `compare` say what is asked and what counts as right, `grid` which settings are tried, `run` measures
them, `result` is the file, `analysis` what can be read from it, `table` and `plot` show it.
"""
