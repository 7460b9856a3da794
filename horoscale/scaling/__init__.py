"""How a training program scales: measured on some numbers of ranks, and told of many more.

    python -m horoscale.scaling --ranks 1,2,4 --mode weak --samples 32 train.py

runs.py runs the program and reads its timelines, extrapolate.py asks the planner's cost model,
published.py compares that model with published figures, page.py writes an HTML file.
"""
