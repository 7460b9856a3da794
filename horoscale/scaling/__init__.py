"""Measures how a training program scales, and extrapolates to more ranks.

    python -m horoscale.scaling --ranks 1,2,4 --mode weak --samples 32 train.py

runs.py runs the program and reads its timelines, extrapolate.py applies the planner's cost model,
published.py compares that model with published figures, and page.py writes an HTML file.
"""
