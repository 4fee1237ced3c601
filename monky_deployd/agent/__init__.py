"""The agent: one pass (reconcile), when to make it (loop), and the courier of reports."""
