"""What people ask of the agent: live views, summaries, checks."""
