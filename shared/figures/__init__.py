"""The metrics of a run: each is declared once, with its name, unit, kind and meaning.

/metrics, the loads that inference sends to the learner, metrics.csv, the terminal, `seedbed explain`, the charts of the
web page and the tables of docs/figures.md are made from these declarations.
"""
