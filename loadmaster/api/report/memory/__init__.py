"""What a memory plan, or a sweep of budgets, looks like to a person."""
