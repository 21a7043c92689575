"""The paper's tables and figures: which runs are behind each, what it prints, and ours beside it."""
