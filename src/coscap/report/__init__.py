"""The paper's tables and figures for trained runs: `coscap report`.

runs ─▶ samples (kept, resumable) ─▶ scores by seed ─▶ mean and deviation ─▶ tables, figures, results.json
"""
