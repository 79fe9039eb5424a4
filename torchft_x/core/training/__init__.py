"""Decides how a trainer paces itself: step times, heal retries, waiting budgets, and when local steps are averaged."""
