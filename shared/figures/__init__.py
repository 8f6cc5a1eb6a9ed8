"""What a run measures: each figure is declared once, with its name, unit, kind and meaning.

/metrics, what inference tells the learner, metrics.csv, the terminal, `seedbed explain`, the web page's charts and the
tables of docs/figures.md are made from these declarations: who shows a figure names it from here.
"""
